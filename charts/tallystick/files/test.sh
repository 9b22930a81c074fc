# Sends one message and consumes it; retries while the cluster is starting.
set -eu
body="helm test $(date +%s.%N)"
for try in $(seq 120); do
    tally produce "$TOPIC" "$body" && break
    echo "attempt $try: topic $TOPIC is not available yet, retrying"
    sleep 2
done
tally consume "$TOPIC" --once --json | grep -F "$body"
