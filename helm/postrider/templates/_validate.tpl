{{/* Checks that values.schema.json cannot express: values that exclude each other, and secrets in the ConfigMap. */}}
{{- define "postrider.validate" -}}
{{- $values := .Values -}}
{{- $config := include "postrider.config" . | fromJson -}}
{{- $kind := $values.workload.kind -}}

{{- if and $values.autoscaling.enabled $values.keda.enabled -}}
{{- fail "autoscaling.enabled and keda.enabled: both scale the same pods; enable one of them" -}}
{{- end -}}
{{- range $name := list "autoscaling" "keda" -}}
{{- $scaler := get $values $name -}}
{{- if $scaler.enabled -}}
{{- if $values.staticPartitions -}}
{{- fail (printf "staticPartitions and %s.enabled: the shares depend on replicaCount, which an autoscaler would change; enable one of them" $name) -}}
{{- end -}}
{{- if eq $kind "None" -}}
{{- fail (printf "%s.enabled and workload.kind None: the chart renders no pods to scale; disable it" $name) -}}
{{- end -}}
{{- if gt (int $scaler.minReplicas) (int $scaler.maxReplicas) -}}
{{- fail (printf "%s.minReplicas %d is above %s.maxReplicas %d; lower it" $name (int $scaler.minReplicas) $name (int $scaler.maxReplicas)) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if and $values.keda.enabled (not $values.keda.serverAddress) -}}
{{- fail "keda.serverAddress is empty; set the address of Prometheus, for example http://prometheus.monitoring:9090" -}}
{{- end -}}

{{- if and (ne $kind "None") (dig "instance" "name" "" $config) -}}
{{- fail "config.instance.name: all pods would have this name, but only one instance can; leave it out: the default contains the name of the pod" -}}
{{- end -}}

{{- if $values.staticPartitions -}}
{{- if ne $kind "StatefulSet" -}}
{{- fail (printf "staticPartitions and workload.kind %s: the shares require stable pod names; set workload.kind: StatefulSet" $kind) -}}
{{- end -}}
{{- if or (lt (int $values.replicaCount) 1) (gt (int $values.replicaCount) 256) -}}
{{- fail (printf "staticPartitions and replicaCount %d: must be between 1 and 256, the number of partitions" (int $values.replicaCount)) -}}
{{- end -}}
{{- end -}}
{{- if dig "partitions" "static" "" $config -}}
{{- if $values.staticPartitions -}}
{{- fail "staticPartitions and config.partitions.static: set one of them" -}}
{{- else if or (gt (int $values.replicaCount) 1) $values.autoscaling.enabled $values.keda.enabled -}}
{{- fail "config.partitions.static: all replicas would have the same partitions; set staticPartitions, or replicaCount 1" -}}
{{- end -}}
{{- end -}}

{{- range $name := list "ops" "api" -}}
{{- $section := get $config $name -}}
{{- if or (eq $name "ops") $section.enabled -}}
{{- if not (regexMatch ":[1-9][0-9]*$" $section.listen) -}}
{{- fail (printf "config.%s.listen = %q: the port is missing; write it as \"0.0.0.0:8080\"" $name $section.listen) -}}
{{- end -}}
{{- if and (eq $name "ops") (include "postrider.isLoopback" $section.listen) (ne $kind "None") -}}
{{- fail (printf "config.ops.listen = %q: probes cannot reach a loopback address; write \"0.0.0.0:9464\"" $section.listen) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- if and $values.apiTls.existingSecret (dig "api" "tls" "" $values.config) -}}
{{- fail "apiTls.existingSecret and config.api.tls: set one of them" -}}
{{- end -}}
{{- if $config.api.enabled -}}
{{- $api := $config.api -}}
{{- $tokens := or $api.tokens (hasKey $values.secrets.keys "api.tokens") -}}
{{- if and (include "postrider.apiBeyond" .) (not (or $tokens $api.allow_unauthenticated)) -}}
{{- fail (printf "config.api.listen = %s: accepts remote connections without authentication, with or without TLS; add api.tokens to secrets.keys, or set config.api.allow_unauthenticated = true if a proxy authenticates" $api.listen) -}}
{{- end -}}
{{- end -}}

{{- include "postrider.noSecrets" (dict "value" .Values.config "path" "config") -}}
{{- end }}

{{/*
Fails if config contains a secret. The names and patterns are those that Postrider itself hides (crates/settings/src/secret.rs,
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
{{- fail "config.api.tokens contains a token, and config is stored in a ConfigMap; put the list into a Secret and name it in secrets.keys[\"api.tokens\"], or give tables with token_file" -}}
{{- end -}}
{{- include "postrider.noSecrets" (dict "value" $item "path" (printf "%s.%d" $path $at)) -}}
{{- end -}}
{{- else if kindIs "string" .value -}}
{{- $key := trimPrefix "config." $path -}}
{{- $isUri := regexMatch "^config\\.(mongo\\.(uri|sources\\..+\\.uri)|connection_strings\\..+|sinks\\.[^.]+\\.uri)$" $path -}}
{{- $password := or (regexMatch "://[^@]*:.*@" .value) (regexMatch "(?i)[?&](tlscertificatekeyfilepassword|password|authmechanismproperties)=" .value) -}}
{{- $isProperty := regexMatch "(?i)^config\\.sinks\\.[^.]+\\.properties\\..*(password|secret|passphrase|oauthbearer\\.config|\\.pem)" $path -}}
{{- if or (and $isUri $password) $isProperty (regexMatch "^config\\.api\\.tokens\\.[0-9]+\\.token$" $path) -}}
{{- fail (printf "%s contains a secret, and config is stored in a ConfigMap; put it into a Secret and name it in secrets.keys[%q]" $path $key) -}}
{{- end -}}
{{- end -}}
{{- end }}
