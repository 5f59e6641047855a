"""Settings: accepted and refused values, and the messages of refusals."""

from __future__ import annotations

import dataclasses
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferro_alloc import Config
from ferro_alloc._alloc_conf import ignored_options
from ferro_alloc.config import REMOVED, without_effect

PAGES = st.integers(1, 10).map(lambda power: 1 << power)


def test_defaults_are_two_mib_pages_and_no_limit() -> None:
    config = Config()
    assert (config.page_size_bytes, config.memory_limit_bytes) == (2 << 20, 0)


def test_an_unknown_setting_is_refused_with_the_known_ones() -> None:
    settings = {"nonsense": 3}
    expected = "^'nonsense' is not an option of ferro_alloc: expected page_size_mb, memory_limit_mb"
    with pytest.raises(TypeError, match=expected):
        Config(**settings)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=expected):
        dataclasses.replace(Config(), **settings)  # type: ignore[arg-type]


def test_environment() -> None:
    config = Config.from_env({"FERRO_ALLOC_CONF": "page_size_mb:4, memory_limit_mb:4096"})
    assert config == Config(page_size_mb=4, memory_limit_mb=4096)
    assert config.memory_limit_bytes == 4096 << 20
    config = Config.from_env({"FERRO_ALLOC_CONF": "headroom_mb:3,idle_mb:5"})
    assert (config.headroom_bytes, config.idle_bytes) == (3 << 20, 5 << 20)


def refused_in_one_line(text: str, said: str) -> str:
    """The message, which begins with what is expected."""
    with pytest.raises(ValueError, match=f"^{re.escape(said)}") as caught:
        Config.parse(text)
    message = str(caught.value)
    assert "\n" not in message
    return message


@pytest.mark.parametrize("environ", [{}, {"FERRO_ALLOC_CONF": ""}, {"FERRO_ALLOC_CONF": " , "}])
def test_empty_environment_means_defaults(environ: dict[str, str]) -> None:
    assert Config.from_env(environ) == Config()


@given(
    page=PAGES,
    limit=st.none() | st.integers(1024, 1 << 20),
    in_flight=st.none() | st.integers(0, 1000),
    others=st.tuples(st.integers(0, 1 << 20), st.integers(0, 1 << 20)),
)
def test_text_form_reads_back(
    page: int, limit: int | None, in_flight: int | None, others: tuple[int, int]
) -> None:
    config = Config(page, limit, in_flight, *others)
    assert Config.parse(str(config)) == config


MOST = 1 << 30  # MiB of any size


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "page_size_mb:big",
            "page_size_mb is 'big': expected a power of two in MiB from 2 to 1024",
        ),
        ("page_size_mb:3", "page_size_mb is 3: expected a power of two in MiB from 2 to 1024"),
        ("page_size_mb:1", "page_size_mb is 1: expected a power of two in MiB from 2 to 1024"),
        ("page_size_mb:0", "page_size_mb is 0: expected a power of two in MiB from 2 to 1024"),
        ("page_size_mb:-2", "page_size_mb is -2: expected a power of two in MiB from 2 to 1024"),
        ("page_size_mb:none", "page_size_mb is 'none': expected a power of two in MiB"),
        ("page_size_mb:2MiB", "page_size_mb is '2MiB': expected a power of two in MiB"),
        ("page_size_mb:1048576", "page_size_mb is 1048576: expected a power of two in MiB"),
        ("page_size_mb:" + "9" * 5000, "page_size_mb is '999999999999999999999999"),
        ("page_size_mb:1_024", "page_size_mb is '1_024': expected a power of two in MiB"),
        (
            "memory_limit_mb:0",
            f"memory_limit_mb is 0: expected none or a whole number of MiB from 2 to {MOST}",
        ),
        ("memory_limit_mb:1e3", "memory_limit_mb is '1e3': expected none or a whole number of MiB"),
        (f"memory_limit_mb:{MOST + 1}", f"memory_limit_mb is {MOST + 1}: expected none or a whole"),
        ("page_size_mb:64,memory_limit_mb:32", "memory_limit_mb is 32 and page_size_mb is 64"),
        ("in_flight_percent:-1", "in_flight_percent is -1: expected none or a whole number from 0"),
        ("in_flight_percent:9000000", "in_flight_percent is 9000000: expected none or a whole"),
        ("headroom_mb:-1", "headroom_mb is -1: expected a whole number of MiB from 0 to"),
        (f"headroom_mb:{1 << 60}", f"headroom_mb is '{1 << 60}': expected a whole number of MiB"),
        ("idle_mb:none", "idle_mb is 'none': expected a whole number of MiB from 0 to"),
        ("idle_mb:1\n2", "idle_mb is '1\\n2': expected a whole number of MiB from 0 to"),
        ("graph_debug:on", "graph_debug is 'on': expected true or false"),
        ("layout:classic", "layout is 'classic': expected pages or segments"),
    ],
)
def test_a_refused_setting_is_named_with_its_value_and_what_it_may_be(text: str, said: str) -> None:
    message = refused_in_one_line(text, said)
    assert len(message) < 150
    key = text.split(",")[-1].partition(":")[0]
    assert f"as in {key}:" in message or "at least one page" in message


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("page_size:2", "'page_size' is not an option of ferro_alloc: expected page_size_mb, "),
        ("page_size_mb", "'page_size_mb' is not of the form key:value, as in page_size_mb:2"),
        ("page_size_mb:2,page_size_mb:4", "'page_size_mb' is given twice, as 2 and as '4'"),
    ],
)
def test_text_of_another_form_is_refused_in_one_line(text: str, said: str) -> None:
    assert len(refused_in_one_line(text, said)) < 200


def test_the_environment_is_named_where_it_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^FERRO_ALLOC_CONF: page_size_mb is 3: expected a power"):
        Config.from_env({"FERRO_ALLOC_CONF": "page_size_mb:3"})


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("page_size_mb", 2.0),
        ("page_size_mb", "2"),
        ("page_size_mb", True),
        ("page_size_mb", None),
        ("memory_limit_mb", 1.5),
        ("in_flight_percent", False),
        ("headroom_mb", None),
        ("idle_mb", "64"),
        ("layout", None),
        ("graph_debug", "true"),
    ],
)
def test_a_value_of_another_type_is_a_type_error(key: str, value: object) -> None:
    with pytest.raises(TypeError, match=re.escape(f"{key} is {value!r}: expected ")):
        Config(**{key: value})  # type: ignore[arg-type]


def test_every_option_has_a_form_that_is_read() -> None:
    for option in dataclasses.fields(Config):
        with pytest.raises(TypeError) as caught:
            Config(**{option.name: object()})
        example = str(caught.value).partition("as in ")[2]
        assert example.startswith(f"{option.name}:")
        Config.parse(example)


def test_the_layout_is_one_of_two() -> None:
    assert Config().layout == "pages"
    assert Config.parse("layout:segments") == Config(layout="segments")
    for wrong in ("Pages", "", "none", "segment"):
        with pytest.raises(ValueError, match=f"layout is '{wrong}': expected pages or segments"):
            Config.parse(f"layout:{wrong}")


@pytest.mark.parametrize("key", REMOVED)
def test_removed_settings_are_accepted_and_named(key: str) -> None:
    assert without_effect(Config()) == ()
    config = Config.parse(f"{key}:true,idle_mb:4")
    assert config == Config(idle_mb=4, **{key: False}) == Config(idle_mb=4)
    assert without_effect(config) == (f"{key}:true",)
    assert key not in str(config)


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


@pytest.mark.parametrize(
    "text", [" max_split_size_mb : 64 ,", "max_ split_size_mb:6 4", "\tmax_split_size_mb\n:64"]
)
def test_blanks_are_skipped_as_pytorch_skips_them(text: str) -> None:
    assert ignored_options({"PYTORCH_ALLOC_CONF": text}) == ("max_split_size_mb:64",)


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
