# A plain image to train in, as a user's might be: Debian and its Python. torch comes from the image in production; the
# local cluster mounts one environment into its pods instead of importing gigabytes into every node.
ARG BASE=debian:forky-slim
FROM ${BASE}
RUN command -v python3 >/dev/null \
    || { apt-get update && apt-get install -y --no-install-recommends ca-certificates python3 libstdc++6 \
         && rm -rf /var/lib/apt/lists/*; }
ENV PYTHONUNBUFFERED=1
ENTRYPOINT []
CMD ["python3"]
