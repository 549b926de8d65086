# A static image: the program, the certificates of public authorities, /tmp, and the data folder of an unprivileged user. docs/install.md has
# the commands.
FROM golang:1.26 AS build
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY . .
ARG VERSION=
RUN CGO_ENABLED=0 go build -trimpath -buildvcs=false -ldflags="-s -w -X github.com/lmosd/lmosd/internal/buildinfo.version=$VERSION" -o /out/usr/bin/lmosd ./cmd/lmosd
# COPY keeps the mode of a folder inside the copied one, and not that of the copied one itself.
RUN mkdir -p /out/tmp /out/var/lib /data/lmosd && chmod 1777 /out/tmp && chmod 0700 /data/lmosd

FROM scratch
COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/ca-certificates.crt
COPY --from=build /out/ /
COPY --from=build --chown=65532:65532 /data/ /var/lib/
ENV LMOSD_DATA_DIR=/var/lib/lmosd HOME=/var/lib/lmosd PATH=/usr/bin
USER 65532:65532
# Commands write their files, such as the recovery file of an organization, in the only folder that may be written to.
WORKDIR /var/lib/lmosd
VOLUME ["/var/lib/lmosd"]
EXPOSE 4667/tcp 4667/udp
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s CMD ["lmosd", "wait", "--for", "ready", "--timeout", "2s"]
ENTRYPOINT ["lmosd"]
CMD ["run"]
