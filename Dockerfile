# The image of Postrider; docs/docker.md describes how to run it. Build it with `docker build .`, Podman or buildah.
# scripts/image.sh builds it without a registry, and tests what docs/docker.md says.

# Another registry, or a digest: --build-arg BUILDER=… --build-arg RUNTIME=…
ARG BUILDER=docker.io/library/rust:1.95.0-slim-bookworm
ARG RUNTIME=gcr.io/distroless/cc-debian12:nonroot

FROM ${BUILDER} AS builder

# The build of librdkafka requires make, g++ and the headers of OpenSSL.
RUN apt-get -qq update \
  && apt-get -qq -y install --no-install-recommends g++ libssl-dev make pkg-config >/dev/null \
  && rm -rf /var/lib/apt/lists/*

# The runtime image has no zlib, so librdkafka's must be in the binary, even if the builder has one.
ENV LIBZ_SYS_STATIC=1

WORKDIR /build

# The dependencies are in a layer of their own, which only the manifests change. It builds them for empty libraries. The
# manifests name targets and members of the workspace, which must exist although they are not built here. The empty
# libraries are removed afterwards: by their dates cargo could take them for newer than the sources below.
COPY Cargo.toml Cargo.lock ./
COPY examples/demo/Cargo.toml examples/demo/
COPY tests/fixture/Cargo.toml tests/fixture/
COPY tests/model/Cargo.toml tests/model/
COPY crates/adopt/Cargo.toml crates/adopt/
COPY crates/events/Cargo.toml crates/events/
COPY crates/outbox/Cargo.toml crates/outbox/
COPY crates/projections/Cargo.toml crates/projections/
COPY crates/relay/Cargo.toml crates/relay/
COPY crates/settings/Cargo.toml crates/settings/
COPY crates/sinks/Cargo.toml crates/sinks/
COPY crates/store/Cargo.toml crates/store/
RUN mkdir -p benches src examples/demo/src tests/fixture/src tests/model/src \
  && sed -n '/^\[\[bench\]\]/,/^name/ s|^name = "\(.*\)"|benches/\1.rs|p' Cargo.toml | xargs touch \
  && for crate in crates/*; do mkdir "$crate/src" && touch "$crate/src/lib.rs"; done \
  && touch src/lib.rs tests/fixture/src/lib.rs tests/model/src/lib.rs \
  && echo 'fn main() {}' | tee src/main.rs >examples/demo/src/main.rs \
  && cargo build --release --locked \
  && cargo clean --release $(printf -- '--package postrider-%s ' $(ls crates)) --package postrider

COPY crates crates
COPY src src
# The metric postrider_build_info shows it.
ARG REVISION=
RUN POSTRIDER_REVISION="$REVISION" cargo build --release --locked --offline --bin postrider

FROM ${RUNTIME}

COPY config/image.toml /etc/postrider/postrider.toml
COPY --from=builder /build/target/release/postrider /usr/bin/postrider

# Probes and Prometheus connect from outside the container. The variable takes precedence over the file. The API stays on
# loopback, where it requires no token, until POSTRIDER__API__LISTEN is set.
ENV POSTRIDER_CONFIG=/etc/postrider/postrider.toml \
    POSTRIDER__OPS__LISTEN=0.0.0.0:9464 \
    SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt
EXPOSE 9464 8080

# By number, so that Kubernetes can verify that it is not root. Any other user works too, because no file is written. The
# home of this user is not readable for others, so the working directory is /.
USER 65532:65532
WORKDIR /

# Without a shell, so that Postrider is process 1 and receives the signal.
ENTRYPOINT ["postrider"]
CMD ["run"]
STOPSIGNAL SIGTERM
# The image has no shell and no curl. The command requests /livez, which fails only if a restart helps.
HEALTHCHECK --interval=10s --timeout=5s --start-period=10s --retries=3 CMD ["postrider", "healthcheck"]

ARG VERSION=0.1.0
ARG REVISION=unknown
ARG SOURCE=unknown
LABEL org.opencontainers.image.title="Postrider" \
      org.opencontainers.image.description="Transactional outbox relay for MongoDB, to RabbitMQ and Kafka" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.source="${SOURCE}" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
