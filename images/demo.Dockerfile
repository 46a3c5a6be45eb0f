# The programs that `make demo` needs, for an x86_64 Linux with Docker that is no Debian: Debian 12, Go, and the Python
# environment. The first run compiles Kubernetes and Kueue into the volume of the cache; docs/start/try-it.md has the command.
# Build from the checkout's root: docker build -f images/demo.Dockerfile -t singularity-demo .
ARG BASE=debian:bookworm-slim
FROM ${BASE}

# What localcluster/host.py and the Makefile install on a machine. The C compiler is for runc.
RUN apt-get update && apt-get install -y --no-install-recommends buildah busybox-static ca-certificates \
      containernetworking-plugins debootstrap gcc git iproute2 iptables kmod libc6-dev libseccomp-dev make netavark \
      nftables openssl pkgconf procps python3 python3-venv util-linux && rm -rf /var/lib/apt/lists/*

# Debian 12's Go is older. The module proxy has Go itself; `go` verifies its own modules with the checksum database later.
ARG GO=1.26.8
ARG GOPROXY=https://proxy.golang.org
ARG PIP_CERT
ARG SSL_CERT_FILE
RUN python3 -c "import sys, urllib.request as u; u.urlretrieve(sys.argv[1], '/tmp/go.zip')" \
      "${GOPROXY}/golang.org/toolchain/@v/v0.0.1-go${GO}.linux-amd64.zip" \
    && python3 -m zipfile -e /tmp/go.zip /tmp/go && mv /tmp/go/golang.org/toolchain@* /usr/local/go \
    && chmod -R a+x /usr/local/go/bin /usr/local/go/pkg/tool && rm -r /tmp/go /tmp/go.zip
ENV PATH=/usr/local/go/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin GOTOOLCHAIN=local

WORKDIR /singularity
COPY . .
# `make docs` is the quickest target that makes the Python environment and needs nothing else.
RUN make docs >/dev/null && rm -rf build

ENTRYPOINT []
CMD ["make", "demo"]
