"""Whether the engine is well: pure bookkeeping of times."""

from datagen.health import Health


def test_faults_that_no_success_follows_exhaust_the_patience() -> None:
    health = Health(patience_s=10, last_success=0.0)
    health.fault(5.0, "reset")
    health.fault(14.0, "reset")
    assert not health.is_hopeless(14.9, [])
    assert health.is_hopeless(15.0, [])
    health.succeeded(15.5)
    assert not health.is_hopeless(100.0, [])


def test_a_request_sent_before_the_faults_began_is_waited_for() -> None:
    health = Health(patience_s=10, last_success=0.0)
    health.fault(5.0, "reset")
    assert not health.is_hopeless(100.0, in_flight_since=[4.0, 50.0])
    assert health.is_hopeless(100.0, in_flight_since=[50.0])


def test_nothing_is_admitted_while_the_engine_is_down_or_asked_for_a_pause() -> None:
    health = Health(patience_s=10, last_success=0.0)
    assert health.state(0.0) == "running"
    health.pause(3.0)
    health.pause(2.0)
    assert (health.state(2.5), health.admits(2.5)) == ("paused", False)
    assert health.admits(3.0)
    health.is_down = True
    assert (health.state(3.0), health.admits(3.0)) == ("engine down", False)
