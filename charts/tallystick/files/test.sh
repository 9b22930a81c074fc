# One message there and back; the cluster may still be on its way.
set -eu
body="helm test $(date +%s.%N)"
for try in $(seq 120); do
    tally produce "$TOPIC" "$body" && break
    echo "try $try: the topic $TOPIC is not there yet"
    sleep 2
done
tally consume "$TOPIC" --once --json | grep -F "$body"
