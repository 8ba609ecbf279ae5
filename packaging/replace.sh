# The new programs take the place of those that run, one process after the other: no VM's machine connects again. Devices are each a lasthop of their own.
# 3: they cannot, or nothing runs. A refusal that may pass ends no connection: then the programs before go on, and it is said why.
replace() {
    run=$(systemctl show --property=ExecStart --value lasthop.service | sed -n 's/.* --run-dir[ =]\([^ ;]*\).*/\1/p')
    run=${run:-/run/lasthop}
    runs "$run" || return 3
    for dir in "$run"/devices/* "$run"; do
        if runs "$dir"; then replace_at "$dir" || return 3; fi
    done
}

# One that has been killed leaves its socket, and holds its lock no more.
runs() {
    [ -S "$1/api.sock" ] && [ -e "$1/lock" ] && ! flock --nonblock --shared "$1/lock" true
}

replace_at() {
    for try in 1 2 3 4 5; do
        [ $try = 1 ] || sleep 2
        status=0
        { why=$(lasthop upgrade --run-dir "$1" 2>&1 >&9) || status=$?; } 9>&1
        if [ $status = 0 ]; then return 0; fi
        if [ $status = 3 ]; then echo "$why" >&2; return 3; fi
    done
    echo "lasthop goes on with the programs before ($1): ${why#lasthop: }; \`lasthop upgrade --run-dir $1\` when that is mended, or \`systemctl restart lasthop\`" >&2
}
