"""Settings: what is accepted, what is refused, and what a refusal says."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferro_alloc import Config, FerroError
from ferro_alloc._alloc_conf import ignored_options

PAGES = st.integers(1, 10).map(lambda power: 1 << power)


def test_defaults_are_two_mib_pages_and_no_limit() -> None:
    config = Config()
    assert (config.page_size_bytes, config.memory_limit_bytes) == (2 << 20, 0)


def test_environment() -> None:
    config = Config.from_env({"FERRO_ALLOC_CONF": "page_size_mb:4, memory_limit_mb:4096"})
    assert config == Config(page_size_mb=4, memory_limit_mb=4096)
    assert config.memory_limit_bytes == 4096 << 20


@pytest.mark.parametrize("environ", [{}, {"FERRO_ALLOC_CONF": ""}, {"FERRO_ALLOC_CONF": " , "}])
def test_empty_environment_means_defaults(environ: dict[str, str]) -> None:
    assert Config.from_env(environ) == Config()


@given(
    page=PAGES,
    limit=st.none() | st.integers(1024, 1 << 20),
    in_flight=st.none() | st.integers(0, 1000),
    others=st.tuples(st.integers(0, 1 << 20), st.integers(0, 1 << 20)),
    background=st.booleans(),
)
def test_text_form_reads_back(
    page: int, limit: int | None, in_flight: int | None, others: tuple[int, int], background: bool
) -> None:
    config = Config(page, limit, in_flight, *others, background_unmap=background)
    assert Config.parse(str(config)) == config


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("page_size:2", "'page_size' is no option"),
        ("page_size_mb", "not of the form key:value"),
        ("page_size_mb:big", "page_size_mb is 'big': expected a whole number"),
        ("page_size_mb:3", "page_size_mb is 3: expected a power of two"),
        ("page_size_mb:1", "page_size_mb is 1: expected a power of two"),
        ("page_size_mb:0", "page_size_mb is 0: expected a power of two"),
        ("page_size_mb:-2", "page_size_mb is -2: expected a power of two"),
        ("page_size_mb:none", "page_size_mb is None: expected a power of two"),
        ("memory_limit_mb:0", "memory_limit_mb is 0: expected none or at least one page"),
        ("in_flight_percent:-1", "in_flight_percent is -1: expected none or a whole number"),
        ("headroom_mb:-1", "headroom_mb is -1: expected a whole number of at least 0"),
        ("idle_mb:none", "idle_mb is None: expected a whole number of at least 0"),
        ("background_unmap:1", "background_unmap is '1': expected true or false"),
        ("background_unmap:none", "background_unmap is 'none': expected true or false"),
        ("page_size_mb:64,memory_limit_mb:32", "at least one page (64)"),
    ],
)
def test_bad_text_names_the_mistake_and_lists_all_options(text: str, named: str) -> None:
    with pytest.raises(FerroError) as caught:
        Config.parse(text)
    message = str(caught.value)
    assert named in message
    for option in dataclasses.fields(Config):
        assert option.name in message
        assert option.metadata["meaning"] in message


def test_the_layout_is_one_of_two() -> None:
    assert Config().layout == "pages"
    assert Config.parse("layout:segments") == Config(layout="segments")
    for wrong in ("Pages", "", "none", "segment"):
        with pytest.raises(FerroError, match=f"layout is '{wrong}': expected pages or segments"):
            Config.parse(f"layout:{wrong}")


def test_live_memory_moves_only_where_that_is_asked_for() -> None:
    assert not Config().move_live
    assert Config.parse("move_live:true") == Config(move_live=True)
    for wrong in ("yes", "1", "none"):
        with pytest.raises(FerroError, match=f"move_live is '{wrong}': expected true or false"):
            Config.parse(f"move_live:{wrong}")


@pytest.mark.parametrize("text", ["true", "True", "TRUE"])
def test_the_thread_is_asked_for(text: str) -> None:
    assert not Config().background_unmap
    assert Config.parse(f"background_unmap:{text}") == Config(background_unmap=True)
    assert "background_unmap:true" in str(Config(background_unmap=True))
    with pytest.raises(FerroError, match="background_unmap is 1: expected true or false"):
        Config(background_unmap=1)  # type: ignore[arg-type]


def test_a_key_given_twice_is_refused() -> None:
    with pytest.raises(FerroError, match="'page_size_mb' is given twice"):
        Config.parse("page_size_mb:2,page_size_mb:4")


def test_booleans_are_no_sizes() -> None:
    with pytest.raises(FerroError, match="page_size_mb is True"):
        Config(page_size_mb=True)


def test_config_is_immutable() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Config().page_size_mb = 4  # type: ignore[misc]


def test_settings_of_the_native_allocator_are_named() -> None:
    text = (
        "expandable_segments:True,roundup_power2_divisions:[256:1,512:2,>:8],max_split_size_mb:64"
    )
    assert ignored_options({"PYTORCH_CUDA_ALLOC_CONF": text}) == ("max_split_size_mb:64",)


def test_settings_about_segments_have_a_meaning_where_there_are_segments() -> None:
    text = (
        "max_split_size_mb:64,garbage_collection_threshold:0.8,max_non_split_rounding_mb:32,"
        "large_segment_size_mb:32,expandable_segments:True"
    )
    environ = {"PYTORCH_CUDA_ALLOC_CONF": text}
    assert ignored_options(environ, layout="segments") == ("expandable_segments:True",)
    assert len(ignored_options(environ)) == 4


def test_each_key_is_named_once() -> None:
    environ = {"PYTORCH_ALLOC_CONF": "max_split_size_mb:64,max_split_size_mb:128"}
    assert ignored_options(environ) == ("max_split_size_mb:128",)


def test_settings_of_the_pinned_host_allocator_keep_their_meaning() -> None:
    text = "pinned_use_background_threads:True,garbage_collection_threshold:0.8"
    assert ignored_options({"PYTORCH_ALLOC_CONF": text}) == ("garbage_collection_threshold:0.8",)


def test_settings_that_are_followed_are_not_named() -> None:
    text = "roundup_power2_divisions:[256:1,>:8],per_process_memory_fraction:0.5"
    assert ignored_options({"PYTORCH_ALLOC_CONF": text}) == ()


def test_the_first_variable_that_is_set_is_the_one_in_force() -> None:
    environ = {"PYTORCH_CUDA_ALLOC_CONF": "a:1", "PYTORCH_ALLOC_CONF": "b:2"}
    assert ignored_options(environ) == ("a:1",)
