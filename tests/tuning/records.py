"""Records for the tests of tuning."""

from hypothesis import strategies as st

from taskmap.tuning.record import Conditions, Operator, Record, Verdict

HERE = Conditions(device="EPYC", threads=2, compiler="gcc 12 -O3", version="1")
MATMUL = Operator("cpu.matmul", "64x64x64", "f32", "row", "cpu:avx512")


def record(config: str = "a", *seconds: float, at: float = 1000.0, operator: Operator = MATMUL) -> Record:
    """A measured configuration, or one that crashed when there are no times."""
    verdict = Verdict.OK if seconds else Verdict.CRASHED
    return Record(operator, config, verdict, HERE, at, seconds, "" if seconds else "signal 11")


texts = st.text(max_size=12)
times = st.floats(1e-9, 1e3)
operators = st.builds(Operator, texts, texts, texts, texts, texts)
conditions = st.builds(Conditions, texts, st.integers(1, 256), texts, texts, texts, times)
measured = st.builds(
    Record,
    operators,
    texts,
    st.just(Verdict.OK),
    conditions,
    st.floats(0, 1e9),
    st.lists(times, min_size=1, max_size=5).map(tuple),
    texts,
)
failed = st.builds(
    Record,
    operators,
    texts,
    st.sampled_from([v for v in Verdict if v is not Verdict.OK]),
    conditions,
    st.floats(0, 1e9),
    st.just(()),
    texts,
)
records = measured | failed
