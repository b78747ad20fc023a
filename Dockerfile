# One node of riverrun: docker build -t riverrun . && docker run -p 9092:9092 riverrun
# compose.yaml starts three, examples/kubernetes.yaml is for Kubernetes.
# With traces: docker build --build-arg EXTRAS=otel ...
FROM python:3.13-slim AS build
ARG EXTRAS=""
COPY . /source
# The virtualenv needs no pip of its own.
RUN python -m venv --without-pip /opt/riverrun \
    && pip --python /opt/riverrun/bin/python install --no-cache-dir \
       --constraint /source/constraints.txt "/source${EXTRAS:+[$EXTRAS]}"

FROM python:3.13-slim
RUN useradd --system --uid 10001 --create-home --home-dir /var/lib/riverrun riverrun
COPY --from=build /opt/riverrun /opt/riverrun
ENV PATH=/opt/riverrun/bin:$PATH \
    RIVERRUN_LOG_DIRS=/var/lib/riverrun/data \
    RIVERRUN_LOG_FORMAT=json
USER 10001
VOLUME /var/lib/riverrun
# Clients, controllers, HTTP (health and metrics)
EXPOSE 9092 9093 9094
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=5s --timeout=3s --start-period=60s \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:9094/health/ready', timeout=2)"]
ENTRYPOINT ["riverrun"]
# A single node that clients on this machine reach at localhost:9092.
CMD ["start", "--advertised-addr", "localhost:9092", "--set", "listeners=PLAINTEXT://0.0.0.0:9092,CONTROLLER://127.0.0.1:9093", "--set", "http.listener=0.0.0.0:9094"]
