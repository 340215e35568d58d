{{/* config with the values that other values imply, as JSON. */}}
{{- define "postrider.config" -}}
{{- $config := deepCopy .Values.config -}}
{{- $api := default dict $config.api -}}
{{- $_ := set $api "enabled" (default false $api.enabled) -}}
{{- if $api.enabled -}}
{{- $_ := set $api "listen" (default "0.0.0.0:8080" $api.listen) -}}
{{- if .Values.apiTls.existingSecret -}}
{{- $files := dict "cert_file" "/etc/postrider/tls/tls.crt" "key_file" "/etc/postrider/tls/tls.key" -}}
{{- $_ := set $api "tls" $files -}}
{{- end -}}
{{- end -}}
{{- $_ := set $config "api" $api -}}
{{- if .Values.schemaJob.enabled -}}
{{- $outbox := default dict $config.outbox -}}
{{- if kindIs "invalid" $outbox.auto_init_schema -}}{{- $_ := set $outbox "auto_init_schema" false -}}{{- end -}}
{{- $_ := set $config "outbox" $outbox -}}
{{- end -}}
{{- $ops := default dict $config.ops -}}
{{- $_ := set $ops "listen" (default "0.0.0.0:9464" $ops.listen) -}}
{{- $_ := set $config "ops" $ops -}}
{{ toJson $config }}
{{- end }}

{{/* postrider.toml. */}}
{{- define "postrider.configFile" -}}
# Written by Helm from config.*. Secrets are in the environment.
{{ include "postrider.toml.table" (dict "table" (include "postrider.config" . | fromJson) "path" list) | trim }}
{{- end }}

{{/* Changes with the configuration, so that the pods restart: Postrider reads it only at its start. */}}
{{- define "postrider.checksum" -}}
{{ printf "%s%s" (include "postrider.configFile" .) (include "postrider.partitions" .) | sha256sum }}
{{- end }}

{{/* Pod name of a StatefulSet: its share of the 256 partitions. */}}
{{- define "postrider.partitions" -}}
{{- if .Values.staticPartitions -}}
{{- $replicas := int .Values.replicaCount -}}
{{- $name := include "postrider.fullname" . -}}
{{- range $at := until $replicas }}
{{ $name }}-{{ $at }}: "{{ div (mul 256 $at) $replicas }}-{{ sub (div (mul 256 (add $at 1)) $replicas) 1 }}"
{{- end -}}
{{- end -}}
{{- end }}

{{/* Whether the API is on and reachable from outside the pod. */}}
{{- define "postrider.apiBeyond" -}}
{{- $api := (include "postrider.config" . | fromJson).api -}}
{{- if and $api.enabled (not (include "postrider.isLoopback" $api.listen)) }}yes{{ end -}}
{{- end }}

{{- define "postrider.isLoopback" -}}
{{- if regexMatch "^(127\\.|localhost:|\\[::1\\]:)" . }}yes{{ end -}}
{{- end }}

{{- define "postrider.opsPort" -}}
{{ regexFind "[0-9]+$" (include "postrider.config" . | fromJson).ops.listen }}
{{- end }}

{{- define "postrider.apiPort" -}}
{{ regexFind "[0-9]+$" (include "postrider.config" . | fromJson).api.listen }}
{{- end }}
