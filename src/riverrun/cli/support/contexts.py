"""Contexts: clusters by name, in a file of the user, and the address that a command uses.

The file is TOML. ``current`` names the context that commands use by default. Each table below
``contexts`` is one context; entries that this version does not know are kept.

    current = "staging"

    [contexts.staging]
    bootstrap = "10.0.0.1:9092,10.0.0.2:9092"

The first of these decides the address: ``--bootstrap`` or ``--context``, ``RIVERRUN_BOOTSTRAP``,
``RIVERRUN_CONTEXT``, ``current`` in the file, ``127.0.0.1:9092``.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import typer
from typer.core import TyperGroup, TyperOption

from riverrun.cli.support.client_config import (
    COMMAND_CONFIG_FLAG,
    COMMAND_CONFIG_VARIABLE,
    ClusterAddress,
    check_names,
    command_properties,
    config_file,
)
from riverrun.cli.support.options import (
    BOOTSTRAP_DEFAULT,
    BOOTSTRAP_VARIABLE,
    FAILED,
    NOT_FOUND,
    USAGE,
    fail,
)

FILE_VARIABLE = "RIVERRUN_CONFIG"
CONTEXT_VARIABLE = "RIVERRUN_CONTEXT"
CONTEXT_FLAG = "--context"
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_FLAG_KEY = "riverrun.context"
_CONFIG_KEY = "riverrun.command-config"
_CHECKED_KEY = "riverrun.checked-config"


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """The address that a command uses, and the flag, variable or file that decided it."""

    address: str
    source: str
    context: str | None = None
    entries: Mapping[str, Any] = field(default_factory=dict)
    """The entries of the context in the file."""


def config_path(environment: Mapping[str, str]) -> Path:
    """``RIVERRUN_CONFIG``, else ``riverrun/config.toml`` in the XDG configuration directory."""
    if given := environment.get(FILE_VARIABLE):
        return Path(given)
    # The XDG specification says that a relative path must be ignored.
    base = environment.get("XDG_CONFIG_HOME", "")
    folder = Path(base if os.path.isabs(base) else os.path.expanduser("~/.config"))
    return folder / "riverrun" / "config.toml"


def read_config(path: Path, *, is_required: bool = True) -> dict[str, Any]:
    """The content of the file; empty if there is none. Exits if it is not valid.

    A service may run with the home directory of another user. A file that it may not read is no
    error unless ``is_required``.
    """
    import tomllib

    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        why = f"not TOML: {error}" if isinstance(error, tomllib.TOMLDecodeError) else "not UTF-8"
        fail(f"cannot read the contexts in {path}: {why}", USAGE)
    except OSError as error:
        if isinstance(error, PermissionError) and not is_required:
            return {}
        fail(f"cannot read the contexts in {path}: {error.strerror}", FAILED)
    contexts = content.get("contexts", {})
    if not isinstance(contexts, dict) or not all(isinstance(c, dict) for c in contexts.values()):
        fail(f"{path}: contexts are tables such as [contexts.staging]", USAGE)
    if not isinstance(content.get("current", ""), str):
        fail(f"{path}: current is the name of a context", USAGE)
    return content


def address_of(content: Mapping[str, Any], name: str, path: Path) -> str:
    """The address of a context. Exits if there is no such context, or if it has no address."""
    from riverrun.client.pool import parse_bootstrap

    contexts = content.get("contexts", {})
    if name not in contexts:
        report_unknown(name, list(contexts), path)
    address = contexts[name].get("bootstrap")
    try:
        parse_bootstrap(address if isinstance(address, str) else "")
    except ValueError as error:
        fail(f"context {name} in {path}: bootstrap: {error}", USAGE)
    return str(address)


def report_unknown(name: str, known: list[str], path: Path) -> NoReturn:
    import difflib

    near = difflib.get_close_matches(name, known, n=1)
    hint = f"; did you mean {near[0]}?" if near else ""
    fail(
        f"there is no context {name} in {path}{hint}\n"
        f"  Add it with `riverrun context add {name} --bootstrap HOST:PORT`; `riverrun context "
        "list` lists all.",
        NOT_FOUND,
    )


def choose(environment: Mapping[str, str], flag: str | None) -> Chosen:
    """The address without ``--bootstrap``; ``flag`` is ``--context``."""
    if flag is None and (given := environment.get(BOOTSTRAP_VARIABLE)):
        return Chosen(address=given, source=BOOTSTRAP_VARIABLE)
    path = config_path(environment)
    is_named = flag is not None or any(map(environment.get, (FILE_VARIABLE, CONTEXT_VARIABLE)))
    content = read_config(path, is_required=is_named)
    if flag is not None:
        name, source = flag, CONTEXT_FLAG
    elif given := environment.get(CONTEXT_VARIABLE):
        name, source = given, CONTEXT_VARIABLE
    elif given := content.get("current"):
        name, source = given, str(path)
    else:
        return Chosen(address=BOOTSTRAP_DEFAULT, source="default")
    address = address_of(content, name, path)
    return Chosen(address=address, source=source, context=name, entries=content["contexts"][name])


# The option --context


def add_context_options(group: TyperGroup) -> None:
    """Give ``--context`` to each command with the shared option ``--bootstrap``."""
    for command in group.commands.values():
        if isinstance(command, TyperGroup):
            add_context_options(command)
        for place, parameter in enumerate(command.params):
            if parameter.name == "bootstrap" and parameter.default == BOOTSTRAP_DEFAULT:
                parameter.callback = _resolve
                command.params.insert(place + 1, _context_option())
                command.params.insert(place + 2, _command_config_option())
                break


def _context_option() -> TyperOption:
    return TyperOption(
        param_decls=["--context"],
        type=str,
        metavar="NAME",
        # Eager: the callback of --bootstrap needs the value.
        is_eager=True,
        expose_value=False,
        callback=_remember,
        autocompletion=lambda _context, _words, incomplete: context_names(incomplete),
        help="Use the cluster of this context; see `riverrun context`.  "
        f"[env var: {CONTEXT_VARIABLE}]",
    )


def _command_config_option() -> TyperOption:
    return TyperOption(
        param_decls=[COMMAND_CONFIG_FLAG],
        type=str,
        metavar="FILE",
        is_eager=True,
        expose_value=False,
        callback=partial(_remember, key=_CONFIG_KEY),
        help="Properties to log in with, by the names of Kafka's clients.  "
        f"[env var: {COMMAND_CONFIG_VARIABLE}]",
    )


def _remember(
    context: Any, _parameter: object, value: str | None, *, key: str = _FLAG_KEY
) -> str | None:
    # A command shares ``meta`` with its group, which may have the option too.
    if value is not None:
        context.meta[key] = value
    return value


def _resolve(context: Any, _parameter: object, value: str | None) -> str | None:
    """The callback of ``--bootstrap``."""
    if context.resilient_parsing:
        return value
    flag = context.meta.get(_FLAG_KEY)
    if _is_flag(context):
        if flag is not None:
            fail("use either --bootstrap or --context", USAGE)
        chosen = Chosen(address=str(value), source="--bootstrap")
    else:
        chosen = choose(os.environ, flag)
    path = config_file(os.environ, context.meta.get(_CONFIG_KEY), chosen.entries)
    # A group may have the option too: check the file once.
    if path is not None and path != context.meta.get(_CHECKED_KEY):
        context.meta[_CHECKED_KEY] = path
        check_names(path)
    return _with_login(context, chosen)


def _with_login(context: Any, chosen: Chosen) -> ClusterAddress:
    properties = command_properties(os.environ, context.meta.get(_CONFIG_KEY), chosen.entries)
    return ClusterAddress.of(chosen.address, properties=properties, context=chosen.context)


def completed_address(context: typer.Context) -> ClusterAddress:
    """The address for shell completion, from the part of the line that was typed."""
    if _is_flag(context):
        chosen = Chosen(address=str(context.params["bootstrap"]), source="--bootstrap")
    else:
        chosen = choose(os.environ, context.meta.get(_FLAG_KEY))
    return _with_login(context, chosen)


def _is_flag(context: typer.Context) -> bool:
    """Whether ``--bootstrap`` is on the command line."""
    source = context.get_parameter_source("bootstrap")
    return source is not None and source.name == "COMMANDLINE"


def context_names(incomplete: str) -> list[str]:
    """For shell completion."""
    try:
        content = read_config(config_path(os.environ))
    except typer.Exit:
        return []
    return sorted(name for name in content.get("contexts", {}) if name.startswith(incomplete))


# Changes of the file


@contextlib.contextmanager
def edited_config(path: Path) -> Iterator[Any]:
    """The document of the file, for changes; written at the end. Comments are kept.

    Concurrent commands wait for each other, and readers see the old or the new file.
    """
    import fcntl

    import tomlkit

    path = path.resolve()  # a link to a file elsewhere stays a link
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        fail(f"cannot write {path}: {error.strerror}", FAILED)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        read_config(path)  # exits with a message if it is not valid
        document = tomlkit.parse(path.read_text(encoding="utf-8")) if path.exists() else None
        document = tomlkit.document() if document is None else document
        yield document
        _write(path, tomlkit.dumps(document).encode(), folder)
    except OSError as error:
        fail(f"cannot write {path}: {error.strerror}", FAILED)
    finally:
        os.close(folder)


def _write(path: Path, data: bytes, folder: int) -> None:
    """Replace the file atomically. Only the user may read it: contexts will hold credentials."""
    import tempfile

    # ``mkstemp`` creates files with mode 0600.
    descriptor, beside = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
    except OSError:
        os.unlink(beside)
        raise
    os.fsync(folder)
