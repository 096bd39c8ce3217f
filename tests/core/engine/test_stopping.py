"""Signals to this very process."""

from __future__ import annotations

import os
import signal

import pytest
from rlcore.engine.stopping import Stopping, StopRequested


def test_a_signal_waits_for_a_check() -> None:
    with Stopping() as stopping:
        os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(StopRequested) as stop:
            stopping.check()
    assert stop.value.exit_code == 143
    assert str(stop.value) == "stopped by SIGTERM"


def test_a_signal_interrupts_where_nothing_is_lost() -> None:
    reached = []
    with Stopping() as stopping, pytest.raises(StopRequested) as stop, stopping.at_once():
        os.kill(os.getpid(), signal.SIGINT)
        reached.append(True)
    assert stop.value.exit_code == 130
    assert not reached


def test_a_signal_before_an_interruptible_part_keeps_out_of_it() -> None:
    reached = []
    with Stopping() as stopping:
        os.kill(os.getpid(), signal.SIGINT)
        with pytest.raises(StopRequested), stopping.at_once():
            reached.append(True)
    assert not reached


def test_a_second_signal_is_the_systems() -> None:
    with Stopping():
        os.kill(os.getpid(), signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)


def test_what_a_shell_ignores_stays_ignored() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with Stopping() as stopping:
            os.kill(os.getpid(), signal.SIGINT)
            stopping.check()
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_handlers_are_put_back() -> None:
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    with Stopping():
        assert signal.getsignal(signal.SIGINT) != before[0]
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before


def test_no_handler_takes_it_for_an_error() -> None:
    assert not issubclass(StopRequested, Exception)
