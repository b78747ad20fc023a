"""``ClusterMixin``: a cluster for the tests of a ``unittest.TestCase``."""

from __future__ import annotations

import unittest
from typing import TYPE_CHECKING, ClassVar

from riverrun.testing.cluster import Cluster
from riverrun.testing.processes import Settings

if TYPE_CHECKING:
    Base = unittest.TestCase
else:
    Base = object


class ClusterMixin(Base):
    """Starts ``self.kafka`` before the first test of the class and ends it after the last.

    ::

        class OrdersTest(ClusterMixin, unittest.TestCase):
            riverrun_nodes = 3

            def test_orders(self) -> None:
                topic = self.kafka.topic()
    """

    riverrun_nodes: ClassVar[int] = 1
    riverrun_settings: ClassVar[Settings] = {}
    kafka: ClassVar[Cluster]

    @classmethod
    def setUpClass(cls) -> None:
        super().setUpClass()
        cls.kafka = Cluster(cls.riverrun_nodes, settings=cls.riverrun_settings)
        cls.kafka.open()
        cls.addClassCleanup(cls.kafka.close)
