"""A pytest plug-in (`-p recorder`) that writes which functions each test calls, and how long it takes."""

import time

import pytest
import traced

_last = {"passed": False}


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    """Write one line for each test that passed: one that fails without a mutation can find none."""
    traced.clear()
    _last["passed"] = False
    started = time.perf_counter()
    result = yield
    if _last["passed"]:
        traced.write(item.nodeid, time.perf_counter() - started)
    return result


def pytest_runtest_logreport(report):
    """Remember whether the body of the test passed."""
    if report.when == "call":
        _last["passed"] = report.passed
