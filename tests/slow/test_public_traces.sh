#!/bin/bash
# What cenote reserves for recorded programs stays within its limits. The traces are not part of the repository: they are looked for in
# $CENOTE_TRACES, then beside the repository; without them the test is skipped.
set -eu
folder=${CENOTE_TRACES:-$PWD/../shared/traces}
if ! ls "$folder"/*.csv.gz >/dev/null 2>&1; then
    echo "skipped: no public traces in $folder (set CENOTE_TRACES)"
    exit 77
fi
exec python3 -B tests/slow/public_traces.py "$folder"
