"""The management and inference APIs of a running server: ManagementClient, InferenceClient."""

from slotwise.client.inference import InferenceClient
from slotwise.client.management import ManagementClient

__all__ = ["InferenceClient", "ManagementClient"]
