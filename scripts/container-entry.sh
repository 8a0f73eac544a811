#!/bin/bash
# What the containers run (any other word is a slotwise command):
#   all                the model server with every archive there is, and the gateway, whose options may follow; when one ends, both do
#   server, gateway    one of them; two containers share /state, the network and the process namespace
#   serve              alone, as SageMaker says it: all, with the gateway on 8080 or $SAGEMAKER_BIND_TO_PORT
#   ready, alive       probes: every model has a READY worker; the model server answers
#   wait-for-gateway   return once the gateway is gone, at most 70 s later: it finishes what is in flight first (--timeout-s 60)
set -eu
shopt -s nullglob
record=$SLOTWISE_HOME/default/gateway.json # there while a gateway runs
store=$SLOTWISE_HOME/models                # the image's /app/model_store leads there

archives() { # the archives of the first folder that has any: KServe's, as TorchServe wants it there, SageMaker's, the image's
    local folders folder without=
    read -ra folders <<<"${MODEL_FOLDERS:-/mnt/models /mnt/models/model-store /opt/ml/model /models}"
    found=()
    [ ${#folders[@]} -gt 1 ] || only_mounted=
    for folder in "${folders[@]}"; do
        [ ! "$many" ] || break # SageMaker says later which
        if [ "$folder" = "${folders[-1]}" ] && [ "$without$only_mounted" ]; then # the image's are no answer to what is mounted
            without=${without:-${folders[-2]}}
            echo "error: $without holds no .mar, or cannot be read by uid $(id -u)" >&2
            echo "hint: put archives there; \`slotwise migrate\` makes a model that can be built of a model.tar.gz" >&2
            return 2
        fi
        found=("$folder"/*.mar)
        [ ${#found[@]} -eq 0 ] || break
        if [ -e "$folder" ] && ! { [ -r "$folder" ] && [ -x "$folder" ] && [ -z "$(ls -A "$folder")" ]; }; then
            without=${without:-$folder}
        fi
    done
    mkdir -p "$SLOTWISE_HOME"
    if [ "$guard$many" ]; then # copies, and a guard around each that another tool made
        [ ! -L "$store" ] || rm "$store"
        mkdir -p "$store"
    elif [ -L "$store" ] || [ ! -e "$store" ]; then
        ln -sfn "$folder" "$store"
    fi
}

server() {
    archives
    exec slotwise serve "${found[@]}" --profile "$PROFILE" --server "$SERVER" ${guard:+--guard} "$@"
}

gateway() {
    exec slotwise gateway --host 0.0.0.0 ${DEFAULT_MODEL:+--default-model "$DEFAULT_MODEL"} ${KEYS:+--keys "$KEYS"} "$@"
}

check_address() { # ADDRESS is where the host publishes the ports (compose.yaml says so): only with keys beyond loopback
    local loopback='^(127(\.[0-9]+){3}|localhost|::1|\[::1\])$'
    if [ -z "${KEYS:-}" ] && ! [[ ${ADDRESS:-localhost} =~ $loopback ]]; then
        echo "error: ADDRESS=$ADDRESS lets other machines in, and anybody may ask" >&2
        echo "hint: KEYS=/keys/keys.json, a file that \`slotwise key add NAME --keys FILE\` writes" >&2
        exit 2
    fi
}

status() { # status PORT PATH: how an HTTP server on loopback answers
    exec 3<>"/dev/tcp/127.0.0.1/$1"
    printf 'GET %s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n' "$2" >&3
    read -r -t 8 _ code _ <&3 && echo "$code"
}

tls() { [[ $(<"$record") =~ \"url\":\ *\"https: ]]; }

port() { # the gateway's
    [[ $(<"$record") =~ \"url\":\ *\"[^\"]*:([0-9]+)\" ]] && echo "${BASH_REMATCH[1]}" || echo 8000
}

waiting() { # whether a model that is registered has no worker yet: at the start /ready does not wait for it
    exec 3<>"/dev/tcp/127.0.0.1/$1"
    printf 'GET /ready HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n' >&3
    timeout 8 grep -q '"0 of [1-9]' <&3
}

both() {
    server "${server_options[@]}" & server=$!
    gateway "${gateway_options[@]}" & gateway=$!
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

server_options=() gateway_options=() many= only_mounted= guard=${GUARD:-}
case ${guard,,} in 0 | no | off | false) guard= ;; esac
word=${1:-all}
[ $# -eq 0 ] || shift
[ "$word $#" != "serve 0" ] || word=sagemaker
case $word in
    all)
        check_address
        gateway_options=("$@")
        both
        ;;
    sagemaker) # who answers within its 60 s; 8080 is the gateway's there
        only_mounted=1
        server_options=(--port 18080)
        gateway_options=(--port "${SAGEMAKER_BIND_TO_PORT:-8080}" --translation-port -1 --timeout-s 58)
        if [ "${SAGEMAKER_MULTI_MODEL:-}" = true ]; then
            many=1
            gateway_options+=(--multi-model /opt/ml/models)
        fi
        both
        ;;
    server) server "$@" ;;
    gateway)
        check_address
        gateway "$@"
        ;;
    ready) if [ -e "$record" ] && ! tls; then [ "$(status "$(port)" /ready)" = 200 ] && ! waiting "$(port)"; else slotwise ready; fi ;;
    alive) [ -n "$(status 8080 /ping)" ] ;;
    wait-for-gateway) for _ in {1..140}; do [ -e "$record" ] || exit 0; sleep 0.5; done ;;
    *)
        archives || true # a command may do without /state
        exec slotwise "$word" "$@"
        ;;
esac
