"""`slotwise check`: does an archive keep its promises? Asked of both servers' real workers, without Java.

worker_protocol -> real_worker -> conversation -> promises -> conformance: from the bytes on the socket to the verdict.
"""

from __future__ import annotations
