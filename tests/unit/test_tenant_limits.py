"""Limits of tenants: what each may send, hold and ask for, and that the others do not notice."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calve.access.limits import TenantLimits
from calve.errors import InvalidSettings, Overloaded
from calve.settings import load_settings
from tests.fakes.clocks import HandClock


def limits_of(clock: HandClock, **flags: object) -> TenantLimits:
    named = {f"tenants.{name.replace('__', '.')}": value for name, value in flags.items()}
    settings = load_settings(flags=named, environ={}).settings
    limits = TenantLimits.of(settings, clock)
    assert limits is not None
    return limits


def delay_ms(refused: pytest.ExceptionInfo[Overloaded]) -> int:
    return int(refused.value.context["retry_after_ms"])


def test_without_a_limit_there_is_nothing_to_ask() -> None:
    assert TenantLimits.of(load_settings(environ={}).settings, HandClock()) is None


def test_a_rate_is_kept_and_whoever_is_refused_is_told_when_to_come() -> None:
    clock = HandClock()
    limits = limits_of(clock, rows_per_second_max=100)
    limits.take("acme", 60, 1)
    limits.take("acme", 60, 1)  # more than there is: it is made up for
    with pytest.raises(Overloaded, match="more than 100 rows a second") as refused:
        limits.take("acme", 1, 1)
    assert delay_ms(refused) == 201
    with pytest.raises(Overloaded):
        limits.require_room("acme")
    clock.pass_seconds(delay_ms(refused) / 1000)
    limits.require_room("acme")
    limits.take("acme", 1, 1)


def test_a_batch_larger_than_the_rate_comes_in_and_is_paid_for() -> None:
    clock = HandClock()
    limits = limits_of(clock, bytes_per_second_max=1_000)
    limits.take("acme", 1, 50_000)
    with pytest.raises(Overloaded, match="bytes a second") as refused:
        limits.take("acme", 1, 1)
    assert delay_ms(refused) == 49_001


def test_a_tenant_over_its_limit_is_no_other_ones_matter() -> None:
    limits = limits_of(HandClock(), rows_per_second_max=10)
    limits.take("acme", 1_000, 1)
    limits.take("other", 10, 1)
    with pytest.raises(Overloaded):
        limits.take("acme", 1, 1)


def test_what_was_not_appended_after_all_does_not_count() -> None:
    limits = limits_of(HandClock(), rows_per_second_max=10, log_bytes_max=10)
    with pytest.raises(ZeroDivisionError), limits.counted("acme", 1_000, 1_000):
        raise ZeroDivisionError
    limits.take("acme", 10, 10)


def test_single_tenants_have_their_own() -> None:
    limits = limits_of(
        HandClock(), rows_per_second_max=10, limits='{"acme.rows_per_second_max": 0}'
    )
    limits.take("acme", 1_000_000, 1)
    limits.take("acme", 1_000_000, 1)
    limits.take("other", 11, 1)
    with pytest.raises(Overloaded):
        limits.take("other", 1, 1)


def test_the_log_of_a_tenant_is_bounded() -> None:
    limits = limits_of(HandClock(), log_bytes_max=1_000)
    limits.take("acme", 1, 900)
    with pytest.raises(Overloaded, match="900 bytes of the log"):
        limits.take("acme", 1, 101)
    limits.take("acme", 1, 100)
    limits.tell_log_bytes({"acme": 10})
    limits.take("acme", 1, 900)


def test_queries_and_streams_are_counted_while_they_go_on() -> None:
    limits = limits_of(HandClock(), queries_max=1, subscriptions_max=2)
    with (
        limits.query("acme"),
        limits.query(None),
        limits.query("other"),
        pytest.raises(Overloaded, match="1 queries"),
        limits.query("acme"),
    ):
        pass
    with limits.query("acme"):
        pass
    limits.enter_stream("acme")
    limits.enter_stream("acme")
    with pytest.raises(Overloaded):
        limits.enter_stream("acme")
    limits.leave_stream("acme")
    limits.enter_stream("acme")
    with pytest.raises(Overloaded, match="2 subscriptions"):
        limits.require_subscription("acme", 2)


def test_memory_is_bounded_by_the_tenants_that_send_now() -> None:
    clock = HandClock()
    limits = limits_of(clock, rows_per_second_max=10)
    for number in range(50_000):
        limits.take(f"t{number}", 1, 1)
        clock.pass_seconds(0.001)
    assert len(limits._buckets) <= 20_000


@given(
    batches=st.lists(
        st.tuples(st.integers(1, 300), st.floats(0, 2, allow_nan=False)), min_size=1, max_size=50
    )
)
def test_nobody_ever_sends_more_than_the_rate_a_second_at_once_and_one_batch(
    batches: list[tuple[int, float]],
) -> None:
    clock = HandClock()
    limits = limits_of(clock, rows_per_second_max=100)
    taken = 0
    for rows, pause in batches:
        clock.pass_seconds(pause)
        try:
            limits.take("acme", rows, 1)
        except Overloaded as refused:
            # Whoever comes when it was told to is taken.
            clock.pass_seconds(int(refused.context["retry_after_ms"]) / 1000)
            limits.take("acme", rows, 1)
        taken += rows
        assert taken <= 100 * clock.monotonic() + 100 + rows


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[tenants.limits.acme]\nrows = 3", "tenants.limits.acme.rows: is not a tenant and one of"),
        ("[tenants.limits]\nacme = 3", "tenants.limits.acme: is not a tenant and one of"),
        ("[tenants.limits.ACME]\nqueries_max = 3", "tenants.limits.ACME.queries_max: is not"),
        ("[tenants.limits.acme]\nqueries_max = -3", "must be a whole number of 0 or more"),
        ("[tenants]\nqueries_max = -3", "tenants.queries_max: must be"),
    ],
)
def test_a_limit_that_is_none_is_refused(tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "calve.toml").write_text(text)
    with pytest.raises(InvalidSettings, match=says.replace("[", r"\[")):
        load_settings(environ={}, directory=tmp_path)


def test_limits_are_written_as_tables_of_tenants(tmp_path: Path) -> None:
    (tmp_path / "calve.toml").write_text(
        "[tenants]\nrows_per_second_max = 5\n[tenants.limits.acme]\nrows_per_second_max = 7\n"
    )
    settings = load_settings(environ={}, directory=tmp_path).settings
    limits = TenantLimits.of(settings, HandClock())
    assert limits is not None
    assert limits.limit("acme").rows_per_second_max == 7
    assert limits.limit("other").rows_per_second_max == 5
