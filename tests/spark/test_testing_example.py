"""The example of `riverrun.testing` with PySpark passes."""

import pytest

from tests.spark.java import fast_java
from tests.testing.plugin_runs import assert_passed, run_pytest
from tests.testing.test_examples import EXAMPLES, NEEDS_SPARK

pytestmark = pytest.mark.timeout(240)


def test_the_spark_example_passes() -> None:
    with fast_java():
        assert_passed(run_pytest(EXAMPLES, NEEDS_SPARK, seconds_max=230), 1)
