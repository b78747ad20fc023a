"""Dataclasses that are quick to define: a node has two hundred of them when it starts.

The library's decorator writes and compiles six functions for each class, which takes longer than
loading the module that it stands in; together they were a third of a start. This one makes the same
class, slots and all, and compiles each function when it is first called. What it leaves out is what
we do not use: ``InitVar``, ``KW_ONLY`` and classes without slots.

Type checkers and ``dataclasses.fields`` see an ordinary dataclass.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, FrozenInstanceError
from reprlib import recursive_repr
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dataclasses import dataclass, field, replace
else:
    from dataclasses import field

__all__ = ["dataclass", "declared_fields", "field", "replace"]

Fields = dict[str, "Field[Any]"]

_DECLARED = "__riverrun_fields__"
_BY_POSITION: Field[Any] = field(kw_only=False)
_BY_NAME: Field[Any] = field(kw_only=True)
_ORDER = {"__lt__": "<", "__le__": "<=", "__gt__": ">", "__ge__": ">="}


def _dataclass(
    *,
    slots: bool = False,
    frozen: bool = False,
    kw_only: bool = False,
    eq: bool = True,
    order: bool = False,
) -> Callable[[type], type]:
    assert slots, "everything that travels has slots"

    def define(cls: type) -> type:
        own = _own_fields(cls, kw_only)
        inherited: Fields = {}
        for base in reversed(cls.__mro__[1:]):
            inherited |= base.__dict__.get(_DECLARED, {})
        fields = inherited | own
        hidden = ("__dict__", "__weakref__")
        kept = {k: v for k, v in cls.__dict__.items() if k not in own and k not in hidden}
        original = _Original(cls, {"frozen": frozen, "kw_only": kw_only, "eq": eq, "order": order})
        made = {
            "__slots__": tuple(name for name in own if name not in inherited),
            "__match_args__": tuple(k for k, f in fields.items() if f.init and not f.kw_only),
            "__repr__": _repr,
            "__init__": original.later("__init__"),
            **(_FROZEN if frozen else {}),
            **({"__eq__": original.later("__eq__")} if eq else {}),
            **({name: original.later(name) for name in _ORDER} if order else {}),
            **kept,
            _DECLARED: fields,
            "__dataclass_fields__": original,
        }
        # Python itself adds a hash of None beside an __eq__ that is written out.
        if eq and kept.get("__hash__") is None:
            made["__hash__"] = original.later("__hash__") if frozen else None
        original.slotted = type(cls)(cls.__name__, cls.__bases__, made)
        original.slotted.__qualname__ = cls.__qualname__
        return original.slotted

    return define


def declared_fields(cls: type) -> Mapping[str, Field[Any]]:
    """The fields of a dataclass by name; of ours without the work of ``dataclasses.fields``."""
    fields: Fields = cls.__dict__.get(_DECLARED) or getattr(cls, "__dataclass_fields__")  # noqa: B009
    return fields


def _replace(instance: Any, /, **changes: Any) -> Any:
    cls = type(instance)
    for name, declared in declared_fields(cls).items():
        if not declared.init:
            assert name not in changes, f"{cls.__name__}.{name} is not given to the constructor"
        elif name not in changes:
            changes[name] = getattr(instance, name)
    return cls(**changes)


if not TYPE_CHECKING:
    dataclass, replace = _dataclass, _replace


class _Original:
    """A class as it was written, without slots, and what is made of it when it is needed.

    As an attribute of the class with slots it stands for what the library knows of the class, its
    ``Field``s with names and types, and gives its place to that when somebody asks.
    """

    __slots__ = ("cls", "options", "slotted")

    def __init__(self, cls: type, options: dict[str, bool]) -> None:
        self.cls = cls
        self.options = options
        self.slotted = cls

    def __get__(self, _instance: object, _owner: type) -> Any:
        known: Any = dataclasses.dataclass(**self.options)(self.cls)
        slotted: Any = self.slotted
        slotted.__dataclass_params__ = known.__dataclass_params__
        slotted.__dataclass_fields__ = known.__dataclass_fields__
        return known.__dataclass_fields__

    def later(self, name: str) -> Callable[..., Any]:
        """A method that takes its real form when it is first called."""

        def first(instance: object, *values: Any, **named: Any) -> Any:
            method = self._compiled(name)
            setattr(self.slotted, name, method)
            return method(instance, *values, **named)

        return first

    def _compiled(self, name: str) -> Callable[..., Any]:
        cls = self.slotted
        known: dict[str, Any] = {}
        match name:
            case "__init__":
                text = _init(cls, self.options["frozen"], known)
            case "__hash__":
                text = _hash(getattr(cls, _DECLARED))
            case _:
                text = _comparison(name, getattr(cls, _DECLARED))
        exec(text, known)
        method: Callable[..., Any] = known[name]
        method.__qualname__ = f"{cls.__qualname__}.{name}"
        method.__module__ = cls.__module__
        return method


def _own_fields(cls: type, kw_only: bool) -> Fields:
    fields: Fields = {}
    namespace = cls.__dict__
    for name, annotation in namespace.get("__annotations__", {}).items():
        assert isinstance(annotation, str), f"{cls}: needs `from __future__ import annotations`"
        if annotation.startswith("ClassVar"):
            continue
        if name not in namespace:
            fields[name] = _BY_NAME if kw_only else _BY_POSITION
            continue
        value = namespace[name]
        if not isinstance(value, Field):
            assert value.__hash__ is not None, f"{cls.__name__}.{name}: all would share {value!r}"
            value = field(default=value, kw_only=kw_only)
        elif value.kw_only is MISSING:
            value.kw_only = kw_only
        fields[name] = value
    return fields


# -- Methods as text ------------------------------------------------------------------------------


def _init(cls: type, is_frozen: bool, known: dict[str, Any]) -> str:
    """As the library writes it, but that frozen fields are set through their slots: a third less
    time. ``known`` takes the values that the text names.
    """
    parameters: dict[bool, list[str]] = {False: [], True: []}
    body: list[str] = []
    fields: Fields = getattr(cls, _DECLARED)
    for name, declared in fields.items():
        parameter = value = name
        if declared.default_factory is not MISSING:
            known[f"_make_{name}"] = declared.default_factory
            known["_MISSING"] = MISSING
            parameter = f"{name}=_MISSING"
            value = f"_make_{name}()"
            if declared.init:
                value += f" if {name} is _MISSING else {name}"
        elif declared.default is not MISSING:
            known[f"_default_{name}"] = declared.default
            parameter = f"{name}=_default_{name}"
            value = name if declared.init else f"_default_{name}"
        elif not declared.init:
            continue
        if declared.init:
            parameters[bool(declared.kw_only)].append(parameter)
        if is_frozen:
            known[f"_set_{name}"] = getattr(cls, name).__set__
            body.append(f"_set_{name}(self, {value})")
        else:
            body.append(f"self.{name} = {value}")
    if hasattr(cls, "__post_init__"):
        body.append("self.__post_init__()")
    by_name = ["*", *parameters[True]] if parameters[True] else []
    head = f"def __init__({', '.join(['self', *parameters[False], *by_name])}):\n "
    return head + "\n ".join(body or ["pass"])


def _values(of: str, names: list[str]) -> str:
    return "(" + "".join(f"{of}.{name}," for name in names) + ")"


def _hash(fields: Fields) -> str:
    counted = [k for k, f in fields.items() if (f.compare if f.hash is None else f.hash)]
    return f"def __hash__(self):\n return hash({_values('self', counted)})"


def _comparison(name: str, fields: Fields) -> str:
    compared = [k for k, f in fields.items() if f.compare]
    ours, theirs = _values("self", compared), _values("other", compared)
    return (
        f"def {name}(self, other):\n"
        " if other.__class__ is not self.__class__: return NotImplemented\n"
        f" return {ours} {_ORDER.get(name, '==')} {theirs}"
    )


# -- Methods that all share -----------------------------------------------------------------------


@recursive_repr()
def _repr(self: Any) -> str:
    cls = type(self)
    shown = [name for name, declared in getattr(cls, _DECLARED).items() if declared.repr]
    return f"{cls.__qualname__}({', '.join(f'{name}={getattr(self, name)!r}' for name in shown)})"


def _refuse_to_set(_: object, name: str, _value: object) -> None:
    raise FrozenInstanceError(f"cannot assign to field {name!r}")


def _refuse_to_delete(_: object, name: str) -> None:
    raise FrozenInstanceError(f"cannot delete field {name!r}")


def _get_state(self: Any) -> list[Any]:
    return [getattr(self, name) for name in getattr(type(self), _DECLARED)]


def _set_state(self: Any, state: list[Any]) -> None:
    for name, value in zip(getattr(type(self), _DECLARED), state, strict=True):
        object.__setattr__(self, name, value)


_FROZEN: dict[str, Any] = {
    "__setattr__": _refuse_to_set,
    "__delattr__": _refuse_to_delete,
    "__getstate__": _get_state,
    "__setstate__": _set_state,
}
