# The server with the CPU provider, for linux/amd64 and linux/arm64:
#   docker build -t hexserve .
#   docker run --rm -p 127.0.0.1:8000:8000 hexserve                              the embedded demo model
#   docker run --rm -p 127.0.0.1:8000:8000 -v /my/bundle:/bundle:ro hexserve     a bundle of yours
# With Qualcomm's provider: an ARM64 Linux host's NPU (deploy/README.md), or its emulator on amd64:
#   docker build -t hexserve:qnn --build-arg EXTRAS=qnn .
ARG PYTHON_VERSION=3.12

FROM python:${PYTHON_VERSION}-slim AS builder
# Nothing, or qnn: which lock under deploy/locks the final stage has.
ARG EXTRAS=
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 ORT_DISABLE_TELEMETRY=1
WORKDIR /source
COPY deploy/locks ./deploy/locks
# The compiler has its own environment, which stays behind. Its pip fills both.
RUN python -m venv /opt/compiler \
    && /opt/compiler/bin/pip install --require-hashes -r deploy/locks/compile.txt
# What the final stage takes: neither compilers nor torch, no pip, and byte-code only of what first_run.py imports.
RUN python -m venv --without-pip /opt/hexserve \
    && /opt/compiler/bin/pip --python /opt/hexserve/bin/python install --no-compile --require-hashes \
        -r "deploy/locks/${EXTRAS:-serve}.txt"
COPY pyproject.toml README.md LICENSE ./
COPY server ./server
COPY engine ./engine
RUN /opt/compiler/bin/pip wheel --no-deps --no-build-isolation --wheel-dir /wheels . \
    && /opt/compiler/bin/pip install --no-deps /wheels/hexserve-*.whl \
    && /opt/compiler/bin/pip --python /opt/hexserve/bin/python install --no-compile --no-deps /wheels/hexserve-*.whl
# Away from /source: its folders must not be imported in place of what was installed.
WORKDIR /
RUN /opt/compiler/bin/hexserve compile demo --quant fp32 --output /bundle \
    && chmod -R a+rX /bundle
COPY deploy/first_run.py /source/deploy/
RUN /opt/hexserve/bin/python /source/deploy/first_run.py /opt/hexserve/bin/hexserve /bundle

FROM python:${PYTHON_VERSION}-slim
LABEL org.opencontainers.image.title="hexserve" \
      org.opencontainers.image.description="OpenAI-compatible inference server with continuous batching over row graphs" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY --from=builder /opt/hexserve /opt/hexserve
# A volume mounted at /bundle takes this one's place.
COPY --from=builder /bundle /bundle
# Nothing is written outside /tmp, so the root file system may be read-only.
ENV PATH=/opt/hexserve/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    ORT_DISABLE_TELEMETRY=1 \
    HOME=/tmp \
    HEXSERVE_BUNDLE=/bundle \
    HEXSERVE_CACHE_DIR=/tmp/hexserve \
    HEXSERVE_HOST=0.0.0.0 \
    HEXSERVE_PORT=8000
USER 10001:10001
WORKDIR /tmp
EXPOSE 8000
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=3s --start-period=60s --retries=3 \
    CMD ["python", "-c", "import os, urllib.request as r; r.urlopen('http://127.0.0.1:' + os.environ['HEXSERVE_PORT'] + '/health/live', timeout=2)"]
ENTRYPOINT ["hexserve"]
CMD ["serve"]
