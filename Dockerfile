# squidbot as a container: docker build -t squidbot .   (amd64 and arm64; every compiled dependency comes as a wheel)
#
# A private package index or its own certificate authority comes in as secrets, which stay out of every layer:
#   docker build --secret id=pip_conf,src=pip.conf --secret id=uv_toml,src=uv.toml --secret id=ca_bundle,src=ca.pem .
# A base image that is pinned by digest, or comes from elsewhere:
#   docker build --build-arg PYTHON_IMAGE=python:3.13-slim-trixie@sha256:… .
ARG PYTHON_IMAGE=python:3.13-slim-trixie

FROM ${PYTHON_IMAGE} AS build
ARG UV_VERSION=0.13.8
RUN --mount=type=secret,id=pip_conf,target=/etc/pip.conf \
    --mount=type=secret,id=ca_bundle,target=/run/secrets/ca_bundle \
    python -m venv /opt/uv && /opt/uv/bin/pip install --no-cache-dir --disable-pip-version-check "uv==${UV_VERSION}"
ENV UV_PROJECT_ENVIRONMENT=/opt/squidbot \
    UV_COMPILE_BYTECODE=1 \
    UV_LINK_MODE=copy \
    UV_NO_CACHE=1 \
    UV_PYTHON_DOWNLOADS=never
WORKDIR /source
# The libraries alone first: they change rarely, and so does this layer.
COPY pyproject.toml uv.lock ./
RUN --mount=type=secret,id=uv_toml,target=/etc/uv/uv.toml \
    --mount=type=secret,id=ca_bundle,target=/run/secrets/ca_bundle \
    if [ -s /run/secrets/ca_bundle ]; then export SSL_CERT_FILE=/run/secrets/ca_bundle; fi; \
    /opt/uv/bin/uv sync --frozen --no-dev --extra dav --extra mcp --extra pdf --extra pictures --extra postgres --extra s3 --no-install-project --python "$(command -v python)"
COPY README.md LICENSE CHANGELOG.md ./
COPY agent_core agent_core
COPY squidbot_api squidbot_api
COPY channels channels
COPY gateway gateway
COPY deploy/devservers deploy/devservers
RUN --mount=type=secret,id=uv_toml,target=/etc/uv/uv.toml \
    --mount=type=secret,id=ca_bundle,target=/run/secrets/ca_bundle \
    --mount=type=secret,id=pip_conf,target=/etc/pip.conf \
    if [ -s /run/secrets/ca_bundle ]; then export SSL_CERT_FILE=/run/secrets/ca_bundle; fi; \
    /opt/uv/bin/uv sync --frozen --no-dev --extra dav --extra mcp --extra pdf --extra pictures --extra postgres --extra s3 --no-editable --python "$(command -v python)"
# What nobody asks for here: the web pages of litellm's own server, a quicker way to fetch models from Hugging Face, the
# tests of pycryptodome, and descriptions of Amazon's services but for logging in and models.
RUN rm -rf /opt/squidbot/lib/python3*/site-packages/litellm/proxy/_experimental/out \
    /opt/squidbot/lib/python3*/site-packages/litellm/proxy/swagger \
    /opt/squidbot/lib/python3*/site-packages/litellm/proxy/_lazy_openapi_snapshot.json \
    /opt/squidbot/lib/python3*/site-packages/hf_xet* \
    /opt/squidbot/lib/python3*/site-packages/Crypto/SelfTest \
 && find /opt/squidbot/lib/python3*/site-packages/botocore/data -mindepth 1 -maxdepth 1 -type d \
    ! -name 'sts' ! -name 'sso*' ! -name 'signin' ! -name 'bedrock*' ! -name 'sagemaker-runtime' -exec rm -r {} +

FROM ${PYTHON_IMAGE}
LABEL org.opencontainers.image.title="squidbot" \
      org.opencontainers.image.description="A chat gateway daemon for Matrix, email and a timer" \
      org.opencontainers.image.licenses="GPL-3.0-or-later"
RUN groupadd --gid 10001 squidbot \
 && useradd --uid 10001 --gid 10001 --home-dir /var/lib/squidbot --shell /usr/sbin/nologin squidbot \
 && install -d -m 0700 -o 10001 -g 10001 /var/lib/squidbot /var/lib/squidbot-files /var/lib/squidbot-files/attachments
COPY --from=build /opt/squidbot /opt/squidbot
ENV PATH=/opt/squidbot/bin:/usr/local/bin:/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin \
    SQUIDBOT_HOME=/var/lib/squidbot \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    SQUIDBOT_WATCHDOG_SECONDS=300
USER 10001:10001
VOLUME /var/lib/squidbot
WORKDIR /var/lib/squidbot
# A process that stands still for SQUIDBOT_WATCHDOG_SECONDS ends itself with a trace; the restart policy does the rest.
# Alive means that the event loop turns and turns are worked on; a Matrix or mail server that is away does not make it unhealthy.
HEALTHCHECK --interval=30s --timeout=10s --start-period=30s --retries=3 \
    CMD ["python", "-m", "gateway.operations.control.healthcheck"]
STOPSIGNAL SIGTERM
ENTRYPOINT ["squidbot"]
CMD ["run"]
