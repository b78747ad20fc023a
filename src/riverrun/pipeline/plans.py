"""From sources to what a sink writes: transforms in order, on batches and on streams alike."""

from __future__ import annotations

import importlib
import importlib.util
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType

from pyspark.sql import DataFrame, SparkSession

from riverrun.pipeline.declaration import PythonTransform, SqlTransform, Transform
from riverrun.pipeline.errors import CannotContinue

_STATEFUL = re.compile(
    r"^[\s:|+-]*~?(Aggregate|Deduplicate\w*|Distinct|Join|Window|Sort|GlobalLimit|LocalLimit|Offset"
    r"|Intersect|Except|\w*MapGroups\w*|TransformWithState\w*|\w*StatefulOperator\w*)\b",
    re.MULTILINE,
)


def transformed(
    spark: SparkSession,
    frames: Mapping[str, DataFrame],
    transforms: Sequence[Transform],
    output: str,
) -> DataFrame:
    """What the transforms make of the sources; views are the session's own."""
    known = dict(frames)
    for name, frame in frames.items():
        frame.createOrReplaceTempView(name)
    for transform in transforms:
        match transform:
            case SqlTransform():
                made = spark.sql(transform.sql)
            case PythonTransform():
                made = _call(transform, [known[name] for name in transform.inputs])
        known[transform.name] = made
        made.createOrReplaceTempView(transform.name)
    return known[output]


def has_state(frame: DataFrame) -> bool:
    """Whether rows of several batches meet in it. On a batch of its own, such a transform would
    quietly mean something else.
    """
    plan = frame._jdf.queryExecution().analyzed().toString()
    return _STATEFUL.search(plan) is not None


def load_function(transform: PythonTransform) -> object:
    """The function, fresh from its file; CannotContinue when it is not there."""
    function = getattr(_module(transform.module), transform.function, None)
    if not callable(function):
        text = f"{transform.module} has no function {transform.function}"
        raise CannotContinue(f"transforms.{transform.name}.python: {text}")
    return function


def _call(transform: PythonTransform, inputs: Sequence[DataFrame]) -> DataFrame:
    function = load_function(transform)
    assert callable(function)
    made = function(*inputs)
    if not isinstance(made, DataFrame):
        text = f"{transform.function} gives {type(made).__name__}, not a DataFrame"
        raise CannotContinue(f"transforms.{transform.name}.python: {text}")
    return made


def _module(name: str) -> ModuleType:
    if not name.endswith(".py"):
        return importlib.import_module(name)
    spec = importlib.util.spec_from_file_location(Path(name).stem, name)
    assert spec is not None, "a file that ends with .py can be loaded"
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
