# Prometheus: scrapes, each second, whatever targets tests list. A test writes TARGETS_DIR/ANY_NAME.json, such as
#   [{"targets": ["127.0.0.1:9464"], "labels": {"test": "…"}}]
# and asks the HTTP API for the result. The two binaries are for `promtool check` and for tests that run their own server.
# shellcheck shell=bash disable=SC2154 # common.sh, sourced before, sets the folders

prometheus_targets=$run/prometheus-targets
prometheus_where() { echo "port $POSTRIDER_PROMETHEUS_PORT, log $logs/prometheus.log"; }

prometheus_found() { have prometheus && have promtool; }

prometheus_packages() { prometheus_found || echo prometheus; }

prometheus_install() {
  prometheus_found || die prometheus "no prometheus and promtool on PATH; install the package prometheus"
}

prometheus_ready() { http_ok "$POSTRIDER_PROMETHEUS_PORT" /-/ready; }

prometheus_start() {
  running_already prometheus prometheus_ready && return
  local start
  start=$(now_ms)
  need_port prometheus "$POSTRIDER_PROMETHEUS_PORT" POSTRIDER_PROMETHEUS_PORT=…
  say prometheus "starting…"
  mkdir -p "$data/prometheus" "$prometheus_targets"
  cat >"$data/prometheus/prometheus.yml" <<YAML
global:
  scrape_interval: 1s
  scrape_timeout: 1s
scrape_configs:
  - job_name: postrider
    file_sd_configs:
      - files: ["$prometheus_targets/*.json"]
        refresh_interval: 1s
YAML
  launch prometheus prometheus --config.file="$data/prometheus/prometheus.yml" \
    --storage.tsdb.path="$data/prometheus/tsdb" --web.listen-address="127.0.0.1:$POSTRIDER_PROMETHEUS_PORT"
  await_ready prometheus 60 prometheus_ready
  say prometheus "ready in $(since "$start"), $(prometheus_where)"
}

prometheus_stop() { stop_processes prometheus 20; }

prometheus_clean() { rm -rf "$data/prometheus" "$prometheus_targets"; }

prometheus_env() {
  export_line POSTRIDER_TEST_PROMETHEUS "$(command -v prometheus || true)"
  export_line POSTRIDER_TEST_PROMTOOL "$(command -v promtool || true)"
  export_line POSTRIDER_TEST_PROMETHEUS_URL "http://127.0.0.1:$POSTRIDER_PROMETHEUS_PORT"
  export_line POSTRIDER_TEST_PROMETHEUS_TARGETS "$prometheus_targets"
}
