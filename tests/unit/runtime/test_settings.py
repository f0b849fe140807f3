from __future__ import annotations

import pytest

from services.dispatcher.settings import DispatcherSettings
from shared.contract.errors import MisconfiguredError
from shared.runtime.settings import RuntimeSettings, read_settings

URL = "postgresql://lockkeeper_dispatcher@127.0.0.1/lockkeeper"


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCKKEEPER_DATABASE_URL", URL)


def test_settings_of_other_services_may_stand_beside_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCKKEEPER_SWEEPER_BATCH", "7")
    monkeypatch.setenv("LOCKKEEPER_DISPATCHER_CLAIM_BATCH", "9")
    common, own = read_settings("dispatcher", RuntimeSettings, DispatcherSettings)
    assert (common.database_url, own.claim_batch) == (URL, 9)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("LOCKKEEPER_DISPATCHER_CLAM_BATCH", "9", "did you mean LOCKKEEPER_DISPATCHER_CLAIM_BATCH"),
        ("LOCKKEEPER_OPS_PROT", "1", "did you mean LOCKKEEPER_OPS_PORT"),
        ("LOCKKEEPER_DISPATCHER_CLAIM_BATCH", "many", "setting LOCKKEEPER_DISPATCHER_CLAIM_BATCH"),
        ("LOCKKEEPER_DISPATCHER_CLAIM_BATCH", "0", "setting LOCKKEEPER_DISPATCHER_CLAIM_BATCH"),
        ("LOCKKEEPER_DATABASE_URL", "mysql://x", "must be a postgresql:// address"),
        ("LOCKKEEPER_DISPATCHER_SUBMIT_LEASE_SECONDS", "20", "must be less than submit_lease_seconds"),
    ],
)
def test_a_setting_that_cannot_work_refuses_the_start_in_one_line(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, message: str
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(MisconfiguredError) as refused:
        read_settings("dispatcher", RuntimeSettings, DispatcherSettings)
    assert message in refused.value.message
    assert "\n" not in refused.value.message
