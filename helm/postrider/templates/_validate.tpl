{{/* What values.schema.json cannot see: values that exclude each other, and secrets where everybody reads them. */}}
{{- define "postrider.validate" -}}
{{- $values := .Values -}}
{{- $config := include "postrider.config" . | fromJson -}}
{{- $kind := $values.workload.kind -}}

{{- if and $values.autoscaling.enabled $values.keda.enabled -}}
{{- fail "autoscaling.enabled and keda.enabled: two would scale the same pods; keep one of them" -}}
{{- end -}}
{{- range $name := list "autoscaling" "keda" -}}
{{- $scaler := get $values $name -}}
{{- if $scaler.enabled -}}
{{- if $values.staticPartitions -}}
{{- fail (printf "staticPartitions and %s.enabled: the shares are counted from replicaCount, which nobody else may change; keep one of them" $name) -}}
{{- end -}}
{{- if eq $kind "None" -}}
{{- fail (printf "%s.enabled and workload.kind None: there are no pods to scale here" $name) -}}
{{- end -}}
{{- if gt (int $scaler.minReplicas) (int $scaler.maxReplicas) -}}
{{- fail (printf "%s.minReplicas %d is above %s.maxReplicas %d" $name (int $scaler.minReplicas) $name (int $scaler.maxReplicas)) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if and $values.keda.enabled (not $values.keda.serverAddress) -}}
{{- fail "keda.serverAddress is empty; name Prometheus, such as http://prometheus.monitoring:9090" -}}
{{- end -}}

{{- if and (ne $kind "None") (dig "instance" "name" "" $config) -}}
{{- fail "config.instance.name: all pods would have this name, and one can hold it; leave it out, each pod is named after its host" -}}
{{- end -}}

{{- if $values.staticPartitions -}}
{{- if ne $kind "StatefulSet" -}}
{{- fail (printf "staticPartitions and workload.kind %s: shares go by the pods' lasting names, which only a StatefulSet gives" $kind) -}}
{{- end -}}
{{- if or (lt (int $values.replicaCount) 1) (gt (int $values.replicaCount) 256) -}}
{{- fail (printf "staticPartitions and replicaCount %d: 256 partitions are divided among 1 to 256 replicas" (int $values.replicaCount)) -}}
{{- end -}}
{{- end -}}
{{- if dig "partitions" "static" "" $config -}}
{{- if $values.staticPartitions -}}
{{- fail "staticPartitions and config.partitions.static: keep one of the two" -}}
{{- else if or (gt (int $values.replicaCount) 1) $values.autoscaling.enabled $values.keda.enabled -}}
{{- fail "config.partitions.static: all replicas would have the same partitions; take staticPartitions, or replicaCount 1" -}}
{{- end -}}
{{- end -}}

{{- range $name := list "ops" "api" -}}
{{- $section := get $config $name -}}
{{- if or (eq $name "ops") $section.enabled -}}
{{- if not (regexMatch ":[1-9][0-9]*$" $section.listen) -}}
{{- fail (printf "config.%s.listen: %q names no port; write it as \"0.0.0.0:8080\"" $name $section.listen) -}}
{{- end -}}
{{- if and (eq $name "ops") (include "postrider.isLoopback" $section.listen) (ne $kind "None") -}}
{{- fail (printf "config.ops.listen: %q is reached from within the pod only, and probes come from outside; write \"0.0.0.0:9464\"" $section.listen) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- if and $values.apiTls.existingSecret (dig "api" "tls" "" $values.config) -}}
{{- fail "apiTls.existingSecret and config.api.tls: keep one of the two" -}}
{{- end -}}
{{- if $config.api.enabled -}}
{{- $api := $config.api -}}
{{- $tokens := or $api.tokens (hasKey $values.secrets.keys "api.tokens") -}}
{{- if and (include "postrider.apiBeyond" .) (not (or $tokens $api.allow_unauthenticated)) -}}
{{- fail (printf "config.api.listen = %s: is beyond loopback, where tokens are required, with TLS too; add api.tokens to secrets.keys, or set config.api.allow_unauthenticated = true" $api.listen) -}}
{{- end -}}
{{- end -}}

{{- include "postrider.noSecrets" (dict "value" .Values.config "path" "config") -}}
{{- end }}

{{/*
Fails where a secret stands in config. By the names and forms that Postrider itself hides (crates/settings/src/secret.rs,
properties.rs).
*/}}
{{- define "postrider.noSecrets" -}}
{{- $path := .path -}}
{{- if kindIs "map" .value -}}
{{- range $name, $value := .value -}}
{{- include "postrider.noSecrets" (dict "value" $value "path" (printf "%s.%s" $path $name)) -}}
{{- end -}}
{{- else if kindIs "slice" .value -}}
{{- range $at, $item := .value -}}
{{- if and (eq $path "config.api.tokens") (kindIs "string" $item) -}}
{{- fail "config.api.tokens holds a token, which everybody who sees the ConfigMap could use; put the list into a Secret and name it as secrets.keys[\"api.tokens\"], or give tables with token_file" -}}
{{- end -}}
{{- include "postrider.noSecrets" (dict "value" $item "path" (printf "%s.%d" $path $at)) -}}
{{- end -}}
{{- else if kindIs "string" .value -}}
{{- $key := trimPrefix "config." $path -}}
{{- $isUri := regexMatch "^config\\.(mongo\\.(uri|sources\\..+\\.uri)|connection_strings\\..+|sinks\\.[^.]+\\.uri)$" $path -}}
{{- $password := or (regexMatch "://[^@]*:.*@" .value) (regexMatch "(?i)[?&](tlscertificatekeyfilepassword|password|authmechanismproperties)=" .value) -}}
{{- $isProperty := regexMatch "(?i)^config\\.sinks\\.[^.]+\\.properties\\..*(password|secret|passphrase|oauthbearer\\.config|\\.pem)" $path -}}
{{- if or (and $isUri $password) $isProperty (regexMatch "^config\\.api\\.tokens\\.[0-9]+\\.token$" $path) -}}
{{- fail (printf "%s holds a secret, which everybody who sees the ConfigMap could read; put it into a Secret and name it as secrets.keys[%q]" $path $key) -}}
{{- end -}}
{{- end -}}
{{- end }}
