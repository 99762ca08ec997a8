# The wheel is built for the very interpreter that runs it; the last stage has no compiler, no pip cache and no root.
ARG PYTHON=python:3.11-slim-bookworm

FROM rust:1.95-slim-bookworm AS rust

FROM ${PYTHON} AS build
RUN apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev && rm -rf /var/lib/apt/lists/*
COPY --from=rust /usr/local/rustup /usr/local/rustup
COPY --from=rust /usr/local/cargo /usr/local/cargo
ENV RUSTUP_HOME=/usr/local/rustup PATH=/usr/local/cargo/bin:$PATH
RUN python -m venv /opt/build && /opt/build/bin/pip install --no-cache-dir "maturin>=1.9,<2"
WORKDIR /src
COPY Cargo.toml Cargo.lock pyproject.toml README.md LICENSE ./
COPY rust ./rust
COPY python ./python
RUN /opt/build/bin/maturin build --release --locked --strip --out /opt/wheels
RUN python -m venv /opt/ferrule && /opt/ferrule/bin/pip install --no-cache-dir /opt/wheels/*.whl

FROM ${PYTHON}
COPY --from=build /opt/ferrule /opt/ferrule
ENV PATH=/opt/ferrule/bin:$PATH PYTHONUNBUFFERED=1
USER 65532:65532
EXPOSE 8080 9090
ENTRYPOINT ["ferrule"]
