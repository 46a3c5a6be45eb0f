# The agent image: what the init container copies into a training pod (agent, launcher, CRIU), and the sidecar.
# Build from the checkout's root: docker build -f images/agent.Dockerfile -t singularity-agent .
ARG BASE=debian:forky-slim
FROM ${BASE}

# A base that has them (the local cluster's) is taken as it is.
RUN command -v criu >/dev/null && python3 -c "import ensurepip" \
    || { apt-get update && apt-get install -y --no-install-recommends ca-certificates criu python3 python3-venv \
         && rm -rf /var/lib/apt/lists/*; }

COPY images/collect-criu /opt/singularity/build/
RUN /opt/singularity/build/collect-criu /opt/singularity/criu

# Dependencies before code: a change of the code does not install anything. The arguments are for build machines that
# reach the package index through a proxy of their own; none of them stays in the image.
ARG PIP_CERT
ARG PIP_INDEX_URL
ARG HTTPS_PROXY
COPY pyproject.toml images/install-extra /opt/singularity/build/
RUN /opt/singularity/build/install-extra proxy

COPY images/install-agent /opt/singularity/bin/
COPY proxy /opt/singularity/app/proxy
# The injected package is named so that it shadows nothing of the user's; it holds no code that only the sidecar needs.
RUN set -e; app=/opt/singularity/app/proxy; lib=/opt/singularity/lib; mkdir -p $lib/_singularity; \
    cp $app/agent/sitecustomize.py $lib/; cp $app/__init__.py $lib/_singularity/; \
    cp -r $app/protocol $app/agent $app/launcher $lib/_singularity/; rm $lib/_singularity/agent/sitecustomize.py; \
    cp $(/opt/singularity/venv/bin/python -c "import pynvml; print(pynvml.__file__)") $lib/_singularity/; \
    /opt/singularity/venv/bin/python -m compileall -q $app

ENV PYTHONPATH=/opt/singularity/app
ENTRYPOINT []
CMD ["/opt/singularity/venv/bin/python", "-m", "proxy.sidecar"]
