{{/* Common parts of every container of Postrider, for any command. {root, items, tls, static, env, envFrom} */}}
{{- define "postrider.container.common" -}}
{{- $root := .root -}}
image: {{ include "postrider.image" $root | quote }}
imagePullPolicy: {{ $root.Values.image.pullPolicy }}
env:
  - name: POD_NAME
    valueFrom: {fieldRef: {fieldPath: metadata.name}}
  # For every command in the container, also `kubectl exec … -- postrider outbox stats`.
  - name: POSTRIDER_CONFIG
    value: /etc/postrider/config/postrider.toml
  # The image sets this variable, which takes precedence over the file.
  - name: POSTRIDER__OPS__LISTEN
    value: {{ (include "postrider.config" $root | fromJson).ops.listen | quote }}
  {{- with include "postrider.secretEnv" . | trim }}
  {{- . | nindent 2 }}
  {{- end }}
  {{- if .static }}
  # The share of this pod: the ConfigMap has a key for each pod name.
  - name: POSTRIDER__PARTITIONS__STATIC_FILE
    value: /etc/postrider/partitions/$(POD_NAME)
  {{- end }}
  {{- with .env }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- with .envFrom }}
envFrom:
  {{- toYaml . | nindent 2 }}
{{- end }}
volumeMounts:
  - {name: postrider-config, mountPath: /etc/postrider/config, readOnly: true}
  {{- if or .items (include "postrider.secretFiles" $root | fromJson).items }}
  - {name: postrider-secrets, mountPath: /etc/postrider/secrets, readOnly: true}
  {{- end }}
  {{- if .tls }}
  - {name: postrider-tls, mountPath: /etc/postrider/tls, readOnly: true}
  {{- end }}
  {{- if .static }}
  - {name: postrider-partitions, mountPath: /etc/postrider/partitions, readOnly: true}
  {{- end }}
  {{- with $root.Values.extraVolumeMounts }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end }}

{{- define "postrider.hasTls" -}}
{{- if and (include "postrider.config" . | fromJson).api.enabled .Values.apiTls.existingSecret }}yes{{ end -}}
{{- end }}

{{/* The volumes of these mounts. {root, static, mode} */}}
{{- define "postrider.container.volumes" -}}
{{- $root := .root -}}
{{- $keys := (include "postrider.secretKeys" $root | fromJson).items -}}
{{- $files := (include "postrider.secretFiles" $root | fromJson).items -}}
- name: postrider-config
  configMap: {name: {{ include "postrider.fullname" $root }}}
{{- if or $keys $files }}
{{ include "postrider.secretVolume" (dict "keys" $keys "files" $files "mode" .mode) }}
{{- end }}
{{- if include "postrider.hasTls" $root }}
- name: postrider-tls
  secret:
    secretName: {{ $root.Values.apiTls.existingSecret | quote }}
    # {{ printf "0%o" (int .mode) }}
    defaultMode: {{ .mode }}
    items:
      - {key: {{ $root.Values.apiTls.certKey | quote }}, path: tls.crt}
      - {key: {{ $root.Values.apiTls.privateKeyKey | quote }}, path: tls.key}
{{- end }}
{{- if .static }}
- name: postrider-partitions
  configMap: {name: {{ include "postrider.fullname" $root }}-partitions}
{{- end }}
{{- with $root.Values.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* The common parts and volumes with the values of the relay. {root, static} */}}
{{- define "postrider.container.given" -}}
{{- $values := .root.Values -}}
{{- $items := (include "postrider.secretKeys" .root | fromJson).items -}}
{{- include "postrider.container.common" (dict "root" .root "static" .static "items" $items "tls" (include "postrider.hasTls" .root) "env" $values.extraEnv "envFrom" $values.extraEnvFrom) -}}
{{- end }}

{{/* The container of `run`, with ports and probes. {root, static} */}}
{{- define "postrider.container.run" -}}
{{- $values := .root.Values -}}
{{- $sleep := include "postrider.preStopSleepSeconds" .root | int -}}
name: postrider
args:
  - run
  {{- with $values.extraArgs }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{ include "postrider.container.given" . }}
ports:
  - {name: ops, containerPort: {{ include "postrider.opsPort" .root }}, protocol: TCP}
  {{- if include "postrider.apiBeyond" .root }}
  - {name: api, containerPort: {{ include "postrider.apiPort" .root }}, protocol: TCP}
  {{- end }}
startupProbe:
  {{- toYaml $values.startupProbe | nindent 2 }}
livenessProbe:
  {{- toYaml $values.livenessProbe | nindent 2 }}
readinessProbe:
  {{- toYaml $values.readinessProbe | nindent 2 }}
{{- if $sleep }}
lifecycle:
  preStop:
    # The Services stop sending requests here before the API stops.
    sleep: {seconds: {{ $sleep }}}
{{- end }}
resources:
  {{- toYaml $values.resources | nindent 2 }}
{{- end }}

{{- define "postrider.ownSecurityContext" -}}
securityContext:
  {{- toYaml .Values.securityContext | nindent 2 }}
{{- end }}
