#!/bin/bash
# What the containers run (any other word is a slotwise command):
#   all                the model server with every archive of /models, and the gateway; when one ends, both do
#   server, gateway    one of them; two containers share /state, the network and the process namespace
#   ready, alive       probes: every model has a READY worker; the model server answers
#   wait-for-gateway   return once the gateway is gone, at most 70 s later: it finishes what is in flight first (--timeout-s 60)
set -eu
shopt -s nullglob
record=$SLOTWISE_HOME/default/gateway.json # there while a gateway runs

server() { exec slotwise serve /models/*.mar --profile "$PROFILE" --server "$SERVER" "$@"; }
gateway() { exec slotwise gateway --host 0.0.0.0 "$@"; }

status() { # status PORT PATH: how an HTTP server on loopback answers
    exec 3<>"/dev/tcp/127.0.0.1/$1"
    printf 'GET %s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n' "$2" >&3
    read -r -t 8 _ code _ <&3 && echo "$code"
}

waiting() { # whether a model that is registered has no worker yet: at the start /ready does not wait for it
    exec 3<>"/dev/tcp/127.0.0.1/8000"
    printf 'GET /ready HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n' >&3
    timeout 8 grep -q '"0 of [1-9]' <&3
}

both() {
    server & server=$!
    gateway & gateway=$!
    told=
    trap 'told=1; kill -TERM $gateway' TERM INT
    wait -n && code=0 || code=$? # a signal, or the end of one of them
    trap '' TERM INT
    [ "$told" ] || kill -TERM $gateway 2>/dev/null || true # once: a second signal would cut off what is in flight
    wait $gateway || true
    kill -TERM $server 2>/dev/null || true
    wait $server || true
    [ -z "$told" ] || code=0
    exit $code
}

word=${1:-all}
[ $# -eq 0 ] || shift
case $word in
    all) both ;;
    server) server "$@" ;;
    gateway) gateway "$@" ;;
    ready) if [ -e "$record" ]; then [ "$(status 8000 /ready)" = 200 ] && ! waiting; else slotwise ready; fi ;;
    alive) [ -n "$(status 8080 /ping)" ] ;;
    wait-for-gateway) for _ in {1..140}; do [ -e "$record" ] || exit 0; sleep 0.5; done ;;
    *) exec slotwise "$word" "$@" ;;
esac
