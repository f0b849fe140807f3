"""Gives this process an app host's wrong clock: all that Python code can ask says so many seconds more.

The methods of `datetime` are replaced where they stand: a class of our own would not be the one that the
driver returns. No production code knows of it.
"""

from __future__ import annotations

import ctypes
import datetime as dt
import gc
import time
from typing import Any


def shift_clock(seconds: float) -> None:
    """From now on, until the process ends."""
    if not seconds:
        return
    delta = dt.timedelta(seconds=seconds)
    right_time, right_time_ns, right_now, right_utcnow = time.time, time.time_ns, dt.datetime.now, dt.datetime.utcnow
    time.time = lambda: right_time() + seconds
    time.time_ns = lambda: right_time_ns() + int(seconds * 1e9)
    methods: dict[str, Any] = gc.get_referents(dt.datetime.__dict__)[0]
    methods["now"] = staticmethod(lambda tz=None: right_now(tz) + delta)
    methods["utcnow"] = staticmethod(lambda: right_utcnow() + delta)
    ctypes.pythonapi.PyType_Modified(ctypes.py_object(dt.datetime))
