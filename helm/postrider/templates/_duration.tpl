{{/* Whole seconds of a duration as Postrider reads it, rounded up. A dictionary: {text, key}. */}}
{{- define "postrider.seconds" -}}
{{- $units := dict "ms" 1 "msec" 1 "millis" 1 "s" 1000 "sec" 1000 "secs" 1000 "second" 1000 "seconds" 1000
    "m" 60000 "min" 60000 "mins" 60000 "minute" 60000 "minutes" 60000
    "h" 3600000 "hr" 3600000 "hrs" 3600000 "hour" 3600000 "hours" 3600000 -}}
{{- if not (regexMatch "^\\s*([0-9]+\\s*[a-z]+\\s*)+$" .text) -}}
{{- fail (printf "%s: %q is no duration; write it as \"25s\" or \"1m30s\"" .key .text) -}}
{{- end -}}
{{- $millis := 0 -}}
{{- range regexFindAll "[0-9]+\\s*[a-z]+" .text -1 -}}
{{- $unit := regexFind "[a-z]+" . -}}
{{- if not (hasKey $units $unit) -}}
{{- fail (printf "%s: %q has a unit that is none of ms, s, m, h; write it as \"25s\" or \"1m30s\"" $.key $.text) -}}
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

{{/* Above what Postrider itself allows a stop to take: killed in the middle, it would leave leases to wait for. */}}
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
{{- fail (printf "terminationGracePeriodSeconds %d is too short: preStopSleepSeconds (%d) and %s (%s) take up to %d; leave it out, or make it more"
    (int $given) $sleep $key $timeout $least) -}}
{{- else -}}
{{ int $given }}
{{- end -}}
{{- end }}
