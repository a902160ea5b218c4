"""The gateway that a client check runs against, and how a check says what it found.

Told by the environment: BULKHEAD_URL (such as http://127.0.0.1:8080), BULKHEAD_KEY_ACME, BULKHEAD_KEY_GLOBEX.
A script exits with 0 when all its checks held, else with 1 after saying which did not.
"""

import os
import sys
import traceback


def setting(name):
    value = os.environ.get(name)
    if not value:
        sys.exit(f"{name} is not set: start a gateway with `./x demo` and export what it prints")
    return value


URL = setting("BULKHEAD_URL").rstrip("/")
KEYS = {"acme": setting("BULKHEAD_KEY_ACME"), "globex": setting("BULKHEAD_KEY_GLOBEX")}


def expect(held, what):
    """Fails the running check unless `held`."""
    if not held:
        raise AssertionError(what)


def run(checks):
    """Runs every check, says how each went, and exits."""
    failed = 0
    for check in checks:
        try:
            check()
            print(f"ok   {check.__name__}", flush=True)
        except Exception as error:
            failed += 1
            print(f"FAIL {check.__name__}: {type(error).__name__}: {error}", flush=True)
            traceback.print_exc()
    print(f"{len(checks) - failed} passed, {failed} failed")
    sys.exit(1 if failed else 0)
