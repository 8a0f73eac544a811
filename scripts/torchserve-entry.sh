#!/bin/bash
# What the image of pytorch/torchserve takes:
#   serve      a server with config.properties of this folder; further options of torchserve's may follow
#   healthy    the probe: every model has its workers
#   any other  a command, for example: torchserve --start --model-store model-store --models a=a.mar
# A server that a command has started goes on alone: the container stays as long as it does, and ends it in order. Where the
# server ends by itself the container fails.
set -eu
pid_file=${TMPDIR:-/tmp}/.model_server.pid

running() { [ -e "$pid_file" ] && kill -0 "$(head -n 1 "$pid_file")" 2>/dev/null; }

healthy() { # whether /ping on the port for inference says so
    exec 3<>"/dev/tcp/127.0.0.1/${PING_PORT:-8080}"
    printf 'GET /ping HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n' >&3
    read -r -t 8 _ code _ <&3 && [ "$code" = 200 ]
}

case ${1:-serve} in
    serve)
        [ $# -eq 0 ] || shift
        exec torchserve --start --foreground --ts-config /home/model-server/config.properties "$@"
        ;;
    healthy) healthy ;;
    *)
        case "$*" in *--foreground*) exec "$@" ;; esac
        told= started=
        trap 'told=1; torchserve --stop --foreground' TERM INT
        case "$*" in torchserve\ *--start*) started=1 ;; esac
        "$@"
        while running; do
            started=1
            sleep 1 &
            wait $! || true
        done
        if [ "$started" ] && [ ! "$told" ]; then
            echo "error: the server has ended, and nobody told this container to" >&2
            exit 1
        fi
        ;;
esac
