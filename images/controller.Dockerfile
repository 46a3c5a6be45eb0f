# The controller image. Build from the checkout's root: docker build -f images/controller.Dockerfile -t singularity-controller .
ARG BASE=debian:forky-slim
FROM ${BASE}

RUN python3 -c "import ensurepip" \
    || { apt-get update && apt-get install -y --no-install-recommends ca-certificates python3 python3-venv \
         && rm -rf /var/lib/apt/lists/*; }

ARG PIP_CERT
ARG PIP_INDEX_URL
ARG HTTPS_PROXY
COPY images/controller.lock images/install-locked /opt/singularity/build/
RUN /opt/singularity/build/install-locked /opt/singularity/build/controller.lock

COPY kueue_integration /opt/singularity/app/kueue_integration
COPY proxy/singularity_proxy/__init__.py /opt/singularity/app/singularity_proxy/
COPY proxy/singularity_proxy/protocol /opt/singularity/app/singularity_proxy/protocol
RUN /opt/singularity/venv/bin/python -m compileall -q /opt/singularity/app

ENV PYTHONPATH=/opt/singularity/app PYTHONUNBUFFERED=1
USER 65532:65532
ENTRYPOINT []
CMD ["/opt/singularity/venv/bin/python", "-m", "kueue_integration.serve"]
