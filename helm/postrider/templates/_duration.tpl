{{/* Seconds of a duration in the format of the configuration, rounded up. {text, key} */}}
{{- define "postrider.seconds" -}}
{{- $units := dict "ms" 1 "msec" 1 "millis" 1 "s" 1000 "sec" 1000 "secs" 1000 "second" 1000 "seconds" 1000
    "m" 60000 "min" 60000 "mins" 60000 "minute" 60000 "minutes" 60000
    "h" 3600000 "hr" 3600000 "hrs" 3600000 "hour" 3600000 "hours" 3600000 -}}
{{- if not (regexMatch "^\\s*([0-9]+\\s*[a-z]+\\s*)+$" .text) -}}
{{- fail (printf "%s = %q: invalid duration; write it as \"25s\" or \"1m30s\"" .key .text) -}}
{{- end -}}
{{- $millis := 0 -}}
{{- range regexFindAll "[0-9]+\\s*[a-z]+" .text -1 -}}
{{- $unit := regexFind "[a-z]+" . -}}
{{- if not (hasKey $units $unit) -}}
{{- fail (printf "%s = %q: unknown unit; use ms, s, m or h; write it as \"25s\" or \"1m30s\"" $.key $.text) -}}
{{- end -}}
{{- $millis = add $millis (mul (regexFind "[0-9]+" . | int64) (get $units $unit)) -}}
{{- end -}}
{{ div (add $millis 999) 1000 }}
{{- end }}

{{- define "postrider.preStopSleepSeconds" -}}
{{- if kindIs "invalid" .Values.preStopSleepSeconds -}}
{{ ternary 5 0 (eq (include "postrider.apiBeyond" .) "yes") }}
{{- else -}}
{{ int .Values.preStopSleepSeconds }}
{{- end -}}
{{- end }}

{{/* Above the time that Postrider allows itself for a stop. A pod that is killed before leaves leases that must expire. */}}
{{- define "postrider.terminationGracePeriodSeconds" -}}
{{- $config := include "postrider.config" . | fromJson -}}
{{- $timeout := default "25s" (dig "relay" "shutdown_timeout" "" $config) -}}
{{- $key := "config.relay.shutdown_timeout" -}}
{{- $stop := include "postrider.seconds" (dict "text" $timeout "key" $key) | int -}}
{{- $sleep := include "postrider.preStopSleepSeconds" . | int -}}
{{- $least := add $stop $sleep -}}
{{- $given := .Values.terminationGracePeriodSeconds -}}
{{- if kindIs "invalid" $given -}}
{{ add $least 5 }}
{{- else if le (int $given) $least -}}
{{- fail (printf "terminationGracePeriodSeconds %d is too short: preStopSleepSeconds (%d) and %s (%s) take up to %d; omit it, or set more"
    (int $given) $sleep $key $timeout $least) -}}
{{- else -}}
{{ int $given }}
{{- end -}}
{{- end }}
