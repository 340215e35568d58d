# The image of postrider: docs/docker.md says how it is run. Built by BuildKit (`docker build .`), Podman or buildah;
# scripts/image.sh builds it where there is no registry, and proves what docs/docker.md says.

# Another registry, or a digest: --build-arg BUILDER=… --build-arg RUNTIME=…
ARG BUILDER=docker.io/library/rust:1.95.0-slim-bookworm
ARG RUNTIME=gcr.io/distroless/cc-debian12:nonroot

FROM ${BUILDER} AS builder

# librdkafka is C: it wants make, g++ and OpenSSL's headers.
RUN apt-get -qq update \
  && apt-get -qq -y install --no-install-recommends g++ libssl-dev make pkg-config >/dev/null \
  && rm -rf /var/lib/apt/lists/*

# The runtime image has no zlib: librdkafka's must be inside the binary, whatever the builder has.
ENV LIBZ_SYS_STATIC=1

WORKDIR /build

# Dependencies, in a layer of their own, which only the manifests change: they are built for empty libraries. The
# manifests name targets and members of the workspace that must exist, and that nobody builds here. What comes of the
# empty libraries is removed: by its date it could pass for newer than the sources below.
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
RUN cargo build --release --locked --offline --bin postrider

FROM ${RUNTIME}

COPY config/image.toml /etc/postrider/postrider.toml
COPY --from=builder /build/target/release/postrider /usr/bin/postrider

# Probes and Prometheus come from outside the container, to whom its loopback is closed; the variable wins over the
# file. The API stays on loopback, where it needs no token, until somebody opens it.
ENV POSTRIDER_CONFIG=/etc/postrider/postrider.toml \
    POSTRIDER__OPS__LISTEN=0.0.0.0:9464 \
    SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt
EXPOSE 9464 8080

# By number, so that Kubernetes can tell that it is not root. Any other works too, since nothing is written anywhere;
# the home of this one is closed to others.
USER 65532:65532
WORKDIR /

# Without a shell between, so that it is process 1 that gets the signal.
ENTRYPOINT ["postrider"]
CMD ["run"]
STOPSIGNAL SIGTERM
# There is no shell and no curl. It asks /livez, which fails only when a restart would help.
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
