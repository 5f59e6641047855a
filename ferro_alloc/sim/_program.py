"""What the texts of all loaded files of a program contain: the means by which Python code reaches a
variable, an attribute or a function without naming it in the usual way.

Texts are searched, comments included, for to parse all files would take too long. A text that is
found without need only makes a verdict unsure.
"""

from __future__ import annotations

import ast
import importlib.util
import linecache
import re
import sys
from collections.abc import Hashable, Iterator
from functools import cache, cached_property
from operator import is_
from pathlib import Path
from types import FrameType
from typing import Any

from ferro_alloc.sim import _texts
from ferro_alloc.sim._sources import (
    Source,
    is_of_program,
    modules_of_program,
    source_of,
    text_in,
)
from ferro_alloc.sim._texts import Texts
from ferro_alloc.sim._uses import Uses
from ferro_alloc.sim._variables import Variable

REFLECTS = re.compile(
    r"(?<![.\w])(?<!def )(?:exec|eval|locals|globals)\s*\(|(?<![.\w])vars\(\s*\)|__globals__"
    r"|\b(?:builtins|__builtins__|_getframe|currentframe|getouterframes|f_locals|f_globals)\b"
    r"|\binspect\.(?:stack|trace|getinnerframes)|\b(?:settrace|setprofile)\b|sys\.monitoring"
    r"|\b(?:import_module|__import__|spec_from\w*|exec_module|run_path|run_module|load_source)\b"
    r"|sys\.modules|import\s+__main__|from\s+__main__|\bmonkeypatch\b|\bmock\b|__code__"
    r"|__closure__|cell_contents|get_referrers|get_referents|get_objects"
    r"|__torch_function__|__torch_dispatch__|\bTorch(?:Function|Dispatch)Mode\b"
    r"|__array_function__|__array_ufunc__|\binstantiate\b|\bpydoc\b"
)
OPERATORS = re.compile(
    r"def\s+__[ri]?(?:add|sub|mul|truediv|floordiv|div|mod|pow|and|or|xor|lt|le|gt|ge|eq|ne|matmul"
    r"|contains|radd|hash|round|abs|neg|bool|index|int|float|array\w*)__|total_ordering"
    r"|__[ri]?(?:add|sub|mul|truediv|and|or|lt|le|gt|ge|eq|ne|contains)__\s*="
)
ATTRIBUTES = re.compile(
    r"\b(?:attrgetter|methodcaller|asdict|astuple|setattr|delattr)\b|__dict__|\bvars\s*\("
    r"|__(?:get|set|del)attr\w*__|__getattribute__|__get__|__set__|__set_name__|__slots__"
    r"|__getstate__|__setstate__|__reduce|\bgetmembers\b|\bdir\s*\("
)
GETS_ATTRIBUTE = re.compile(r"\bgetattr\s*\(\s*[\w.]+\s*,\s*[\"'](\w+)[\"']")
OUTPUT = re.compile(
    r"\bstd(?:out|err)\s*=[^=]|redirect_std|__stdout__|\bdup2?\s*\("
    r"|\b(?:as|for)\s+\(?sys\.std|^[ \t(\[]*sys\.std(?:out|err)\s*,|[\"']std(?:out|err)[\"']"
    r"|excepthook|displayhook|\.(?:postfix|desc)\b",
    re.MULTILINE,
)
LOGGING = re.compile(
    r"def\s+(?:emit|filter|format\w*|handle\w*|makeRecord)\b|addFilter|setLogRecordFactory"
    r"|\.(?:emit|filter|format\w*|handle\w*|makeRecord)\s*=(?!=)|\.filters\b|assertLogs|LogRecord"
    r"|\b(?:Queue|Memory|Buffering)Handler\b"
    r"|(?:Handler|Filter|Formatter|Logger|Adapter)\)\s*:|setLoggerClass|StringIO|getvalue"
    r"|\.summary\b|get_metric|search_runs|get_run|\bhistory\s*\("
)
# A call of `open` counts as one that reads, unless a mode such as "w" stands in its line.
LOOKS = (
    r"\b(?:l?exists|is_file|isfile|is_dir|isdir|listdir|[ir]?glob)\b|\b(?:iterdir|scandir)\b"
    r"|\bl?stat\s*\(|os\.f?walk|\.walk\s*\(|\baccess\s*\(|\bget[amc]time\b"
)
CATCHES = (
    r"\b(?:FileNotFoundError|OSError|IOError)\b|\bexcept\s*(?:\(?\s*(?:Base)?Exception[^:]*)?:"
    r"|\bsuppress\("
)
READS_BACK = re.compile(
    LOOKS
    + r"|\w*load\w*\(|\bread\w*\(|\bopen\([^,)]*\)|mode=\"r|['\"]r[b+]?['\"]|\breload\b|StringIO"
    r"|\bopen\((?!(?:(?!\bopen\().)*['\"][wax][bt]?['\"])|\b(?:fromfile|from_file|genfromtxt)\b"
    r"|\b(?:mmap|memmap|fileinput|linecache)\b"
    r"|\bget(?:value|buffer|size)\b|\btell\s*\("
    r"|\b(?:check_output|getoutput|getstatusoutput|popen|capture_output)\b"
)
LOGS_TO_FILES = r"\b\w*FileHandler\b|\bbasicConfig\([^)]*\bfilename\b"
BARS_IN_FILES = r"(?:tqdm|trange|[pP]rogress)\w*\([^\n]*\bfile\s*=\s*(?!sys\.std)"
# The state is gathered from several cards, or made by code that is not the module's own.
GATHERS_STATE = (
    r"FSDP|FullySharded|fully_shard|deepspeed|state_dict_\w*hook|accelerat|lightning|DTensor"
    r"|distributed\.checkpoint|distribute_|__getstate__|__reduce|get_extra_state|_to_state_dict\b"
)
# What a learning rate scheduler changes.
RATE = r"(?:get_last_lr\(|\b_?last_(?:epoch|lr)\b|\[[\"']lr[\"']\])"
IMPORTS = re.compile(
    r"(?:^|[:;])[ \t]*(?:from[ \t]+([.\w]+)[ \t]+import[ \t]*(\([^)]*\)|[^\n#;]+)"
    r"|import[ \t]+([^\n#;]+))",
    re.MULTILINE,
)


_last: list[Program] = []


def program_around(frame: FrameType) -> Program:
    """The program that `frame` belongs to, the same one as long as no file is loaded."""
    frames = _Frames(frame)
    last = _last[0] if _last else None
    if last is None or not last.is_known(frames):
        program = Program(frames, last)
        if last is not None and program.is_as(last):
            last.renew(program)
        else:
            _last[:] = [program]
    return _last[0]


class _Frames:
    """Of the frames that run, `frame` and around, what the modules do not tell."""

    def __init__(self, frame: FrameType) -> None:
        self.modules = modules_of_program()
        self.others: dict[tuple[str, int], dict[str, Any]] = {}
        """The variables of files, by the file and their identity."""
        self.are_whole = True
        """Is all code that shares its variables with the frames in their files? Not so the cells of
        a notebook."""
        at: FrameType | None = frame
        while at is not None:
            file, variables = at.f_code.co_filename, at.f_globals
            if is_of_program(file):
                if self.modules.get(file, [None])[0] is not variables:
                    self.others[file, id(variables)] = variables
                if self.are_whole:
                    self.are_whole = _is_file_of(file, variables)
            at = at.f_back


class Earlier:
    """What the searches of `_harmless` have looked at in a program."""

    def __init__(self) -> None:
        self.count = 0
        """Of parts, as often as one was looked at."""
        self.harmless: set[tuple[object, ...]] = set()
        self.harmful: set[tuple[object, ...]] = set()
        """Parts that something follows from which may decide."""
        self.done: set[tuple[object, ...]] = set()
        """Variables, attributes, classes and functions whose uses are harmless."""
        self.held: set[ast.AST] = set()
        """Targets and parameters that get a number which was followed."""


class Program:
    """The loaded files of a program, and those of the frames that run."""

    def __init__(self, frames: _Frames, before: Program | None = None) -> None:
        self._frames = frames
        self._variables: dict[str, dict[str, Any]] = {}
        """Of the modules, by their files."""
        self._is_twice: set[str] = set()
        self._is_whole = frames.are_whole
        for (file, _), variables in frames.others.items():
            self._add(file, variables)
        for file, each in frames.modules.items():
            for variables in each:
                self._add(file, variables)
        self._texts = {file: text_in(file, of) for file, of in self._variables.items()}
        self._entries = self._lines()
        self._index = Texts()
        if before is not None and before._index.are_in(self._texts):
            self._index = before._index
        for file, text in self._texts.items():
            self._index.add(file, text)
        self.earlier = Earlier()
        self.known_values: dict[Hashable, bool] = {}
        """What `Names` has found out."""
        self.uses: dict[tuple[Source, Variable], Uses] = {}
        """The loads of variables."""

    def _add(self, file: str, variables: dict[str, Any]) -> None:
        if self._variables.setdefault(file, variables) is not variables:
            self._is_twice.add(file)

    def _lines(self) -> list[object]:
        """What `linecache` has of the files: another object if it has read one again."""
        return list(map(linecache.cache.get, self._variables))

    def is_known(self, frames: _Frames) -> bool:
        """Is it certain, without a look at the texts, that these frames are of this program?"""
        return (
            frames.modules is self._frames.modules
            and frames.others.keys() == self._frames.others.keys()
            and frames.are_whole == self._is_whole
            and all(map(is_, self._lines(), self._entries))
        )

    def renew(self, same: Program) -> None:
        """Takes what tells that these frames are of the program."""
        self._frames, self._variables = same._frames, same._variables
        self._entries = same._entries

    def is_as(self, other: Program) -> bool:
        """Has it the same files?"""
        mine, others = ((each._texts, each._is_twice, each._is_whole) for each in (self, other))
        return mine == others

    def is_main(self, source: Source) -> bool:
        """Is it the file that was started, which no other module imports?"""
        return source.module == "__main__" and source.file not in self._is_twice

    def sources(self, word: str) -> Iterator[Source | None]:
        """The files that contain a word; None for one that cannot be parsed."""
        for file in self._index.keys_with(_texts.words, word):
            if file in self._variables:  # a later program may have more
                yield source_of(file, self._variables[file])

    def _has(self, pattern: re.Pattern[str] | str) -> bool:
        found = re.compile(pattern, re.MULTILINE) if isinstance(pattern, str) else pattern
        return self._index.has(found)

    def _names(self, name: str, *kinds: _texts.Words) -> bool:
        """Is it one of these kinds of words?"""
        return any(self._index.keys_with(kind, name) for kind in kinds)

    @cached_property
    def reflects(self) -> bool:
        """May code reach variables and functions without their names, or is a part not loaded?"""
        is_known = self._is_whole and all(
            text or _is_empty(file) for file, text in self._texts.items()
        )
        return not is_known or self._has(REFLECTS) or any(self._unloaded())

    @cached_property
    def has_operators(self) -> bool:
        """Do objects of the program define what operators do?"""
        return self._has(OPERATORS)

    @cached_property
    def changes_output(self) -> bool:
        """Is what `print` writes to changed?"""
        return self._has(OUTPUT) or self.defines("write")

    @cached_property
    def changes_bars(self) -> bool:
        """Is what progress bars write to changed?"""
        return self.changes_output or (self._has(BARS_IN_FILES) and self.reads_back)

    @cached_property
    def changes_logging(self) -> bool:
        """May code get what is logged?"""
        return (
            self.changes_output
            or self._has(LOGGING)
            or (self._has(LOGS_TO_FILES) and self.reads_back)
        )

    @cached_property
    def reads_back(self) -> bool:
        """May it read what it has saved?"""
        return self._has(READS_BACK) or self.defines("write")

    @cached_property
    def looks_for_files(self) -> bool:
        """May it depend on whether a file exists?"""
        return self._has(LOOKS) or self._has(CATCHES)

    @cached_property
    def gathers_state(self) -> bool:
        """May the state of a module take memory of the card?"""
        return self._has(GATHERS_STATE)

    @cached_property
    def has_texts(self) -> bool:
        """Do objects of the program define the texts that show them?"""
        name = r"__(?:str|repr|format)__"
        return self._has(rf"def\s+(?:{name}|extra_repr)\b|\b{name}\s*=(?!=)")

    @cached_property
    def decides_by_rate(self) -> bool:
        """May a condition depend on the learning rate, or on the steps of its scheduler?"""
        assigned = re.compile(rf"(?<![.\w])(\w+)\s*(?::\s*\w+\s*)?=(?!=)[^\n]*{RATE}")
        names = {name for text in self._texts.values() for name in assigned.findall(text)}
        condition = r"\b(?:if|while|assert)\b[^\n]*"
        of_names = rf"{condition}(?<![.\w])(?:{'|'.join(names)})\b" if names else r"(?!)"
        return self._has(rf"{condition}{RATE}") or self._has(of_names)

    def reaches_attribute(self, name: str) -> bool:
        """May code load or store an attribute of an object without its name?"""
        return self._names(name, _texts.defined, _texts.annotated) or self.reaches_name(name)

    def reaches_name(self, name: str) -> bool:
        """May code load an attribute of any object without its name?"""
        return self._reaches_all or name in self._reached

    @cached_property
    def _reaches_all(self) -> bool:
        return self._has(ATTRIBUTES) or any(
            len(GETS_ATTRIBUTE.findall(text)) < len(re.findall(r"\bgetattr\b", text))
            for text in self._texts.values()
        )

    @cached_property
    def _reached(self) -> set[str]:
        return {name for text in self._texts.values() for name in GETS_ATTRIBUTE.findall(text)}

    def defines(self, name: str) -> bool:
        """Does it have a function of this name, or set an attribute of it?"""
        return self._names(name, _texts.defined) or self.sets_variable(name)

    def may_define(self, name: str) -> bool:
        """Does an object of the program have a method of this name?"""
        return (
            self.defines(name)
            or self._names(name, _texts.assigned, _texts.set_attributes)
            or self._has(r"__getattr(?:ibute)?__")
        )

    def runs(self, name: str) -> bool:
        """May an attribute of this name run code of the program?"""
        return self._names(name, _texts.defined) or self._has(
            r"\bdef\s+__getattr(?:ibute)?__|__get__|\bproperty\(|\bparametriz"
        )

    def sets_variable(self, name: str) -> bool:
        """May a module set the variable of another one?"""
        return self._names(name, _texts.set_of_others, _texts.set_by_text)

    def replaces(self, name: str) -> bool:
        """May it replace the function of this name by another?"""
        return self._names(name, _texts.set_attributes, _texts.quoted) or self._has(
            r"\bsetattr\b|\breload\b"
        )

    def has_class_of(self, name: str) -> bool:
        """Are classes derived from the class of this name?"""
        return self._names(name, _texts.bases)

    def _unloaded(self) -> Iterator[bool]:
        """Of each imported name, whether it is a file of the program that is not loaded yet."""
        folders = {str(Path(file).parent) for file in self._texts}
        adds_folders = self._has(r"\bsys\.path\b")
        folders |= {path or "." for path in sys.path if is_of_program(f"{path}/")}
        for file, text in self._texts.items():
            package = self._variables[file].get("__package__")
            for of, names, modules in IMPORTS.findall(text):
                if of:
                    base = _absolute(of, package or "")
                    wanted = [base, *(f"{base}.{name}" for name in re.findall(r"\w+", names))]
                else:
                    wanted = [each.split()[0] for each in modules.split(",") if each.split()]
                for name in wanted:
                    yield name not in sys.modules and (
                        _is_file(name, folders) or (adds_folders and not _is_installed(name))
                    )


def _is_empty(file: str) -> bool:
    """Is it a file without text, such as an `__init__.py`?"""
    return Path(file).is_file() and not Path(file).stat().st_size


def _is_file_of(file: str, variables: dict[str, Any]) -> bool:
    """Is it the file of the module with these variables?"""
    of = variables.get("__file__")
    return isinstance(of, str) and (of == file or _resolved(of) == _resolved(file))


@cache
def _resolved(file: str) -> Path:
    return Path(file).resolve()


def _absolute(name: str, package: str) -> str:
    """The name of a module that is imported as `..name`."""
    rest = name.lstrip(".")
    level = len(name) - len(rest)
    if not level:
        return name
    parts = package.split(".")
    base = ".".join(parts[: len(parts) - level + 1])
    return f"{base}.{rest}" if rest else base


def _is_installed(module: str) -> bool:
    top = module.partition(".")[0]
    if top in sys.modules or top in sys.stdlib_module_names:
        return True
    found = importlib.util.find_spec(top)
    return found is not None and not is_of_program(found.origin or "/")


def _is_file(module: str, folders: set[str]) -> bool:
    path = module.replace(".", "/")
    return any(
        Path(folder, f"{path}.py").is_file() or Path(folder, path, "__init__.py").is_file()
        for folder in folders
    )
