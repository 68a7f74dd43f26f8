"""Tables of mixed columns: encoded, drawn, and back with their dtypes."""

import datetime

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("ot")
pandas = pytest.importorskip("pandas")
polars = pytest.importorskip("polars")

from skdml import WassersteinGenerator  # noqa: E402
from skdml.generate._calibration import calibrate  # noqa: E402
from skdml.generate._columns import learn_columns  # noqa: E402
from skdml.generate._frames import read_table, write_table  # noqa: E402
from skdml.generate._tables import learn_table  # noqa: E402

N = 60


def pandas_frame():
    rng = np.random.default_rng(0)
    some = np.arange(N) % 5 == 0
    frame = pandas.DataFrame(
        {
            "whole": rng.integers(0, 9, N).astype(np.int32),
            "nullable": pandas.array(np.where(some, None, np.arange(N)), dtype="Int64"),
            "real": rng.normal(size=N).astype("float32"),
            "gap": np.where(some, np.nan, rng.normal(size=N)),
            "flag": rng.random(N) > 0.5,
            "maybe": pandas.array(np.where(some, None, True), dtype="boolean"),
            "text": ["a", "b"] * (N // 2),
            "string": pandas.array(["a", None] * (N // 2), dtype="string"),
            "level": pandas.Categorical(["a", "b"] * (N // 2), ["b", "a", "c"], ordered=True),
            "time": pandas.date_range("2020", periods=N, freq="h", tz="Europe/Berlin"),
            "day": pandas.date_range("2020", periods=N),
            "mixed": pandas.Series([1, "x", None, True] * (N // 4), dtype=object),
        }
    )
    frame.loc[3, "time"] = pandas.NaT
    return frame


def polars_frame():
    days = [datetime.date(2020, 1, 1) + datetime.timedelta(days=k) for k in range(N)]
    times = [datetime.datetime(2020, 1, 1, k % 24) for k in range(N)]
    letters = [["a", "b"][k % 2] for k in range(N)]
    return polars.DataFrame(
        {
            "whole": polars.Series(np.arange(N) % 7, dtype=polars.UInt8),
            "gap": [None if k % 5 == 0 else k / 3 for k in range(N)],
            "flag": [k % 3 == 0 for k in range(N)],
            "text": [["a", "b", None][k % 3] for k in range(N)],
            "level": polars.Series(letters, dtype=polars.Categorical),
            "closed": polars.Series(letters, dtype=polars.Enum(["a", "b", "c"])),
            "day": days,
            "time": times,
        }
    )


@pytest.mark.parametrize("make", [pandas_frame, polars_frame])
def test_tables_come_back_as_they_were(make):
    frame = make()
    layout, table = read_table(frame)
    assert write_table(layout, table).equals(frame)
    for scaling in ("auto", "columns", "quantile"):
        encoder = learn_table(layout, table, scaling)
        encoded = encoder.encode(table)
        assert encoded.shape == (N, encoder.width)
        assert encoded.dtype == np.float32
        exact = [column for column in frame.columns if column not in ("real", "gap")]
        assert encoder.write(encoded)[exact].equals(frame[exact])
        np.testing.assert_allclose(encoder.project(encoded), encoded, atol=1e-4)
    blocks = [encoded[:, part] for part in encoder.blocks]
    for block in blocks:
        np.testing.assert_allclose(block.mean(axis=0), 0, atol=1e-5)
        assert block.var(axis=0).sum() == pytest.approx(1, abs=1e-4)


@pytest.mark.parametrize("method", ["flow", "critics"])
@pytest.mark.parametrize("make", [pandas_frame, polars_frame])
def test_samples_have_the_dtypes_and_values_of_the_frame(make, method):
    frame = make()
    model = WassersteinGenerator(method, max_iter=5, random_state=0).fit(frame)
    samples = model.sample(50, random_state=0)
    if make is pandas_frame:
        assert (samples.dtypes == frame.dtypes).all()
        assert set(samples["mixed"].map(repr)) <= {"1", "'x'", "None", "True"}
        assert samples["nullable"].isna().any() or method == "critics"
        assert (samples["day"].dt.hour == 0).all()
        assert (samples["time"].dropna().dt.minute == 0).all()
    else:
        assert samples.schema == frame.schema
    assert list(samples.columns) == list(frame.columns)
    assert np.isfinite(model.score(frame))


def test_missing_cells_of_arrays():
    X = np.random.default_rng(0).normal(size=(200, 3))
    X[::4, 1] = np.nan
    samples = WassersteinGenerator(max_iter=30, random_state=0).fit(X).sample(400, random_state=0)
    assert 0.15 < np.isnan(samples[:, 1]).mean() < 0.35
    assert np.isfinite(samples[:, [0, 2]]).all()
    X[:, 2] = np.nan
    samples = WassersteinGenerator(max_iter=3, random_state=0).fit(X).sample(5)
    assert np.isnan(samples[:, 2]).all()


def test_numbers_may_be_categories():
    X = np.random.default_rng(0).choice([1.5, 7.0, 9.25], size=(100, 2))
    model = WassersteinGenerator(max_iter=5, categorical_features=[1], random_state=0).fit(X)
    assert set(model.sample(50, random_state=0)[:, 1]) <= {1.5, 7.0, 9.25}
    with pytest.raises(ValueError, match="categorical_features has 'color', which is no column"):
        WassersteinGenerator(categorical_features=["color"]).fit(X)


def test_normal_scores_are_of_the_mean_rank():
    X = np.array([[0.0], [0.0], [1.0], [1e6]])
    columns = learn_columns(X, "quantile")
    scores = columns.encode(X)[:, 0] * columns.scale
    np.testing.assert_allclose(scores, [-0.6745, -0.6745, 0.3186, 1.1503], atol=1e-3)
    np.testing.assert_allclose(columns.decode(columns.encode(X)), X, atol=1)


def test_calibration_gives_columns_their_distribution():
    rng = np.random.default_rng(0)
    frame = pandas.DataFrame(
        {"x": rng.lognormal(size=2000), "c": rng.choice(list("abc"), 2000, p=[0.9, 0.09, 0.01])}
    )
    layout, table = read_table(frame)
    encoder = learn_table(layout, table)
    rows = encoder.encode(table)
    made = rows * 0.5 + rng.normal(0.2, 0.3, rows.shape)  # wrong in spread, blurred
    found = calibrate(made, rows, encoder).apply(made, encoder)
    levels = np.linspace(0.05, 0.95, 19)
    np.testing.assert_allclose(
        np.quantile(found[:, 0], levels), np.quantile(rows[:, 0], levels), atol=0.02
    )
    assert (np.argsort(found[:, 0]) == np.argsort(made[:, 0])).mean() > 0.95
    shares = encoder.write(found)["c"].value_counts(normalize=True)
    for category, share in frame["c"].value_counts(normalize=True).items():
        assert shares[category] == pytest.approx(share, abs=0.01)


def test_bad_frames():
    frame = pandas_frame()
    with pytest.raises(TypeError, match=r"column 'z' of dtype complex128.*leave it out"):
        WassersteinGenerator().fit(frame.assign(z=1j))
    with pytest.raises(ValueError, match=r"infinity, in column 'real'"):
        WassersteinGenerator().fit(frame.assign(real=np.inf))
    with pytest.raises(ValueError, match=r"1 sample"):
        WassersteinGenerator().fit(frame[:1])
