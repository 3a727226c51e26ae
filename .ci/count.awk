# Sums up what `cargo test` printed. cargo closes each test binary with a line of its own, in which a test that skipped
# itself has passed; tests/needs says which did and why, once or more for each, perhaps behind a name that the harness has begun.
/^test result:/ { passed += $4; failed += $6; skipped += $8 }
match($0, /(^|\.\.\. )(skipped|shortened): [^ ]+: /) {
    name = substr($0, RSTART, RLENGTH)
    sub(/^\.\.\. /, "", name)
    if (name in names) next
    names[name]
    if (name ~ /^skipped/) { passed--; skipped++ } else shortened++
    reason = substr($0, RSTART + RLENGTH)
    sub(/: .*/, "", name)
    why[name ": " reason]++
}
END {
    for (reason in why) printf "%4d %s\n", why[reason], reason
    printf "%d passed (%d shortened), %d failed, %d skipped\n", passed, shortened, failed, skipped
    exit failed > 0 || passed == 0
}
