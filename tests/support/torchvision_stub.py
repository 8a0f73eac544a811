"""What an archive carries where torchvision's compiled library does not fit the installed torch: its sitecustomize.py."""

SITECUSTOMIZE = """\
import sys

if any(worker in argument for worker in ("model_service_worker", "hosts.local", "hosts.framed") for argument in sys.orig_argv):
    from slotwise.worker.engines.torchvision_compat import ensure_importable

    ensure_importable()
"""
