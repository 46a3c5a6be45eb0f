# The agent image: what the init container copies into a training pod (agent, launcher and its tools), and the sidecar.
# Build from the checkout's root: docker build -f images/agent.Dockerfile -t singularity-agent .
ARG BASE=debian:forky-slim

# CRIU with our patches. A base that has it (the local cluster's) is taken as it is.
FROM ${BASE} AS criu
ARG CRIU_SOURCES
ARG HTTPS_PROXY
COPY images/build-criu /build/
COPY images/criu /build/criu
RUN mkdir /made && if criu dump --help 2>/dev/null | grep -q -e --seccomp-filter; \
    then cp "$(command -v criu)" /made/criu; else /build/build-criu /build/criu /made/criu; fi

FROM ${BASE}
RUN command -v busybox >/dev/null && python3 -c "import ensurepip" \
    || { apt-get update && apt-get install -y --no-install-recommends busybox-static ca-certificates libnet9 \
         libnl-3-200 libprotobuf-c1 python3 python3-venv && rm -rf /var/lib/apt/lists/*; }
COPY --from=criu /made/criu /usr/sbin/criu

COPY images/collect-launcher /opt/singularity/build/
RUN /opt/singularity/build/collect-launcher /opt/singularity/launcher

# Dependencies before code: a change of the code does not install anything. The arguments are for build machines that
# reach the package index through a proxy of their own; none of them stays in the image.
ARG PIP_CERT
ARG PIP_INDEX_URL
ARG HTTPS_PROXY
COPY images/agent.lock images/install-locked /opt/singularity/build/
RUN /opt/singularity/build/install-locked /opt/singularity/build/agent.lock

COPY images/install-agent /opt/singularity/bin/
COPY images/add-code images/start /opt/singularity/build/
COPY proxy/singularity_proxy /opt/singularity/app/proxy
COPY singularity_train /opt/singularity/app/singularity_train
RUN /opt/singularity/build/add-code /opt/singularity/app/proxy /opt/singularity/app/singularity_train \
         /opt/singularity \
    && /opt/singularity/venv/bin/python -m compileall -q /opt/singularity/app

ENV PYTHONPATH=/opt/singularity/app
ENTRYPOINT []
CMD ["/opt/singularity/venv/bin/python", "-m", "proxy.sidecar"]
