"""SageMaker's runtime client, which asks a gateway."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import pytest


def runtime_client(url: str, path: Callable[[dict[str, str]], str] = lambda headers: "/invocations") -> Any:
    """boto3's client of SageMaker's runtime, which is botocore's; what AWS does with a path is all that is different."""
    session = pytest.importorskip("botocore.session")
    session, config = pytest.importorskip("botocore.session"), pytest.importorskip("botocore.config")

    def rewrite(request: Any, **_: Any) -> None:
        headers = {key: value.decode() if isinstance(value, bytes) else value for key, value in request.headers.items()}
        request.url = urlsplit(request.url)._replace(path=path(headers)).geturl()

    client = session.get_session().create_client(
        "sagemaker-runtime",
        region_name="eu-central-1",
        endpoint_url=url,
        aws_access_key_id="nobody",
        aws_secret_access_key="nothing",
        config=config.Config(retries={"max_attempts": 0}, proxies={}),
    )
    client.meta.events.register("before-send.sagemaker-runtime", rewrite)
    return client
