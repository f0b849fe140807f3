from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from services.console.policy.drawing import Line, draw, worded
from services.console.policy.series import by_moment, percentile, response, sums, throughput, window_of

NOW = datetime(2026, 3, 29, 10, 20, tzinfo=UTC)


def row(at: datetime, status: str = "completed", tasks: int = 1, which: int = 0, **values: float) -> dict[str, object]:
    nothing = dict.fromkeys(("judged", "confidence", "input_tokens", "output_tokens", "llm_cost", "compute_cost"), 0)
    return {"bucket": at, "status": status, "class": which, "tasks": tasks, **nothing, **values}


@pytest.mark.parametrize(
    ("chosen", "grain", "points"), [("1h", "hour", 24), ("7d", "hour", 168), ("30d", "day", 30), ("all", "day", 366)]
)
def test_a_window_ends_with_the_present_hour_or_day(chosen: str, grain: str, points: int) -> None:
    window = window_of(chosen, NOW)
    step = timedelta(hours=1) if grain == "hour" else timedelta(days=1)
    assert window.grain == grain
    assert (window.until - window.since) // step == points
    assert window.since < NOW < window.until


def test_a_percentile_is_within_its_class() -> None:
    # Classes 49 and 73: about 1 s and about 10 s.
    assert percentile({49: 90, 73: 10}, 0.5) == pytest.approx(1.0, rel=0.1)
    assert percentile({49: 90, 73: 10}, 0.95) == pytest.approx(10.0, rel=0.1)
    assert percentile({}, 0.5) is None


def test_hours_without_anything_are_nothing_in_sums_and_missing_in_response_times() -> None:
    window = window_of("24h", NOW)
    hour = NOW.replace(minute=0)
    found = by_moment([row(hour, which=49, llm_cost=0.5), row(hour, status="failed", llm_cost=0.25)])
    assert sums(found, window, "llm_cost")[-2:] == [(hour - timedelta(hours=1), 0.0), (hour, 0.75)]
    assert [at for at, _ in response(found, window, 0.5)] == [hour]
    assert throughput(found, window, "failed")[-1] == (hour, 1.0)


def test_days_collect_the_hours_in_which_tasks_ended() -> None:
    window = window_of("30d", NOW)
    ended = by_moment([row(NOW.replace(hour=1, minute=0), tasks=2), row(NOW.replace(hour=9, minute=0), tasks=3)])
    assert throughput(ended, window, "completed")[-1] == (NOW.replace(hour=0, minute=0), 5.0)


def test_a_chart_carries_no_style_and_no_script_and_fits_any_width() -> None:
    points = [(NOW + timedelta(hours=n), float(n * n % 7)) for n in range(30)]
    text = draw(
        [Line("in", "--run", points), Line("out", "--off", points[:1])],
        "tokens",
        'a "b" <c>',
        ZoneInfo("Asia/Kolkata"),
        by_day=False,
    )
    assert text.startswith('<svg viewBox="0 0 460 220" role="img" aria-label="a &quot;b&quot; &lt;c&gt;" ')
    assert "var(--run)" in text and "style" not in text and "script" not in text and "Unnamed" not in text
    assert draw([Line("in", "--run", [])], "tokens", "x", ZoneInfo("UTC"), by_day=False) == ""


def test_values_are_worded_by_their_unit() -> None:
    assert [worded(value, "tasks") for value in (0, 12, 1500, 2.5e6)] == ["0", "12", "1.5k", "2.5M"]
    assert [worded(value, "seconds") for value in (0, 0.25, 42, 600, 9000)] == [
        "0",
        "250 ms",
        "42 s",
        "10 min",
        "2.5 h",
    ]
    money = [worded(value, "money") for value in (0.0023, 0.5, 6.6, 1500)]
    assert money == ["$0.0023", "$0.50", "$6.60", "$1.5k"]
    assert worded(97.4, "percent") == "97 %"
