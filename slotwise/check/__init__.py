"""`slotwise check`: test on both servers' real workers, without Java, whether an archive keeps its promises.

worker_protocol -> real_worker -> conversation -> promises -> conformance: from the bytes on the socket to the verdict.
"""

from __future__ import annotations
