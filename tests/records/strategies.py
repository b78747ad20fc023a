"""Hypothesis strategies for records and codecs."""

from hypothesis import strategies as st

from riverrun.records.compression import Compression
from riverrun.records.record import NewRecord

TIMESTAMPS = st.integers(min_value=0, max_value=2**45)
NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)

new_records = st.builds(
    NewRecord,
    value=st.none() | st.binary(max_size=60),
    key=st.none() | st.binary(max_size=20),
    timestamp=TIMESTAMPS,
    headers=st.lists(st.tuples(NAMES, st.none() | st.binary(max_size=10)), max_size=3).map(tuple),
)
record_lists = st.lists(new_records, min_size=1, max_size=12)
codecs = st.sampled_from(list(Compression))
